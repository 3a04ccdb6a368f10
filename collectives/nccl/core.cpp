#include "collectives/nccl/core.hpp"

#include <algorithm>
#include <iterator>

#include "collectives/texts.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives::nccl {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBusyTick = 1ms;
constexpr Duration kIdleTick = 20ms;  // an abort while nothing is in flight is not urgent
/// What a stream has before an operation may take so many timeouts.
constexpr int kTimeoutsBefore = 10;

std::exception_ptr abandoned() {
  return std::make_exception_ptr(CollectiveAborted(
      {ErrorCode::kAborted, "an operation was abandoned", "its group was destroyed", "wait for it before"}));
}

/// What NCCL reports of any of them; empty: nothing. What it failed at may look like what is done.
std::string error_of(const Communicators& communicators) {
  for (const auto& communicator : communicators) {
    std::string error = communicator->async_error();
    if (!error.empty()) return error;
  }
  return {};
}

}  // namespace

/// Events that a thread is at in a call of CUDA, without the lock: nobody records them anew meanwhile.
class Core::InUse {
 public:
  /// REQUIRES: the lock.
  InUse(Core& core, std::vector<Event> events) : core_(core), events_(std::move(events)) {
    core_.in_use_.insert(core_.in_use_.end(), events_.begin(), events_.end());
  }
  /// Takes the lock.
  ~InUse() {
    const std::lock_guard hold(core_.mutex_);
    for (Event event : events_)
      core_.in_use_.erase(std::find(core_.in_use_.begin(), core_.in_use_.end(), event));
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  Core& core_;
  const std::vector<Event> events_;
};

Core::Core(Facts facts) : facts_(std::move(facts)) {}

Core::~Core() {
  leave();
  events_.insert(events_.end(), captured_.begin(), captured_.end());
  for (Event event : events_) {
    if (api().cuda.cudaEventDestroy(event) != kCudaSuccess) {
      log(LogLevel::kWarning, "cudaEventDestroy failed on rank " + std::to_string(facts_.caller.rank));
    }
  }
}

void Core::start() {
  watcher_ = start_quiet_thread([this] { watch(); });
  looker_ = start_quiet_thread([this] { look_on(); });
}

void Core::adopt(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard hold(mutex_);
  communicators_.push_back(std::move(communicator));
}

void Core::leave() {
  {
    const std::lock_guard hold(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (looker_.joinable()) looker_.join();
  const std::lock_guard hold(mutex_);
  for (const auto& pending : pending_) end(*pending, failure_ ? failure_ : abandoned());
  pending_.clear();
  communicators_.clear();
}

bool Core::failed() const {
  const std::lock_guard hold(mutex_);
  return failure_ != nullptr;
}

void Core::check() {
  std::exception_ptr failure;
  {
    const std::lock_guard hold(mutex_);
    failure = failure_;
  }
  if (failure) std::rethrow_exception(failure);
}

std::string Core::abort_reason() {
  std::string reason = reason_heard();
  if (!reason.empty()) return reason;
  Communicators communicators;
  {
    const std::lock_guard hold(mutex_);
    communicators = communicators_;
  }
  const std::string error = error_of(communicators);
  if (error.empty()) return {};
  fail(AbortKind::kPeerLost, error);
  return reason_heard();
}

std::string Core::reason_heard() {
  {
    const std::lock_guard hold(mutex_);
    if (failure_) return reason_;
  }
  const auto heard = host_reason();
  if (!heard) return {};
  set_failure(*heard, false);
  return heard->text;
}

void Core::fail(AbortKind kind, const std::string& reason) {
  {
    const std::lock_guard hold(mutex_);
    if (!told_) told_ = {kind, reason};
  }
  facts_.host->abort(reason);
  const AbortReason first = host_reason().value_or(AbortReason{kind, reason});
  set_failure(first, first.kind == kind && reason.starts_with(first.text));
}

/// The first reason of any rank.
std::optional<AbortReason> Core::host_reason() {
  std::string reason = facts_.host->abort_reason();
  if (reason.empty()) return std::nullopt;
  const std::lock_guard hold(mutex_);
  // The host's group may have cut the reason short, and keeps no kind.
  const bool mine = told_ && told_->text.starts_with(reason);
  return AbortReason{mine ? told_->kind : AbortKind::kRequested, std::move(reason)};
}

void Core::set_failure(const AbortReason& reason, bool mine) {
  const std::lock_guard hold(mutex_);
  if (failure_) return;
  const std::string rank = std::to_string(facts_.caller.rank);
  std::string why = reason.text.empty() ? "whoever aborted it died before saying why" : reason.text;
  if (!mine && !pending_.empty()) why += "; rank " + rank + " was at " + pending_.front()->name();
  const bool late = mine && reason.kind == AbortKind::kTimeout;
  ErrorInfo info{late ? ErrorCode::kTimeout : ErrorCode::kAborted,
                 late ? timed_out_in(facts_.name) : group_called(facts_.name) + " was aborted",
                 std::move(why), kAfterAbort};
  reason_ = reason.text;
  if (info.code == ErrorCode::kTimeout) {
    failure_ = std::make_exception_ptr(Timeout(std::move(info)));
  } else {
    failure_ = std::make_exception_ptr(CollectiveAborted(std::move(info)));
  }
  // Before the communicators are stopped: a kernel that is stopped looks like one that is done.
  for (const auto& pending : pending_) end(*pending, failure_);
  pending_.clear();
  changed_.notify_all();
}

/// NCCL may block, and whoever aborts the group does not wait for that.
void Core::stop_communicators(std::unique_lock<std::mutex>& hold) {
  const auto to_stop = communicators_;
  hold.unlock();
  stop_all(to_stop);
  hold.lock();
  stopped_ = true;
  changed_.notify_all();
}

void Core::await_stopped() {
  std::unique_lock hold(mutex_);
  changed_.wait(hold, [&] { return !failure_ || stopped_; });
}

Event Core::record(Stream stream) {
  Event event = nullptr;
  {
    const std::lock_guard hold(mutex_);
    const auto free = std::find_if(events_.rbegin(), events_.rend(), [&](Event e) {
      return std::find(in_use_.begin(), in_use_.end(), e) == in_use_.end();
    });
    if (free != events_.rend()) {
      event = *free;
      events_.erase(std::next(free).base());
    }
  }
  if (event == nullptr) CUDA_TRY(facts_.caller, api().cuda.cudaEventCreate(&event));
  const CudaCode code = api().cuda.cudaEventRecord(event, stream);
  if (code != kCudaSuccess) {
    const std::lock_guard hold(mutex_);
    give_back(event);
    throw_cuda(facts_.caller, "cudaEventRecord", code);
  }
  return event;
}

void Core::synchronize(Stream stream) {
  Event reached = record(stream);
  const Instant deadline = clock_.now() + facts_.timeout;
  CudaCode code = kCudaNotReady;
  for (unsigned turn = 0; code == kCudaNotReady && clock_.now() < deadline; ++turn) {
    code = query(reached);
    if (code == kCudaNotReady) pause_turn(turn);
  }
  {
    const std::lock_guard hold(mutex_);
    give_back(reached);
  }
  if (code == kCudaNotReady) {
    throw_error({ErrorCode::kTimeout, "the GPU of rank " + std::to_string(facts_.caller.rank) + " is busy",
                 "its stream did not end within " + seconds_text(facts_.timeout),
                 "see what waits on the streams of the buffers"});
  }
  if (code != kCudaSuccess) throw_cuda(facts_.caller, "cudaEventQuery", code);
}

void Core::give_back(Event& event) {
  if (event != nullptr) events_.push_back(std::exchange(event, nullptr));
}

void Core::give_back_all(std::vector<Event>& events) {
  for (Event& event : events) give_back(event);
  events.clear();
}

void Core::expect(const std::shared_ptr<PendingOp>& pending) {
  check();
  for (Stream stream : pending->joined) pending->is_captured |= is_capturing(stream);
  for (Stream stream : pending->joined) {
    Event reached = record(stream);
    const std::lock_guard hold(mutex_);
    pending->after_.push_back(reached);
  }
  const std::lock_guard hold(mutex_);
  pending->issued_at = clock_.now();
  if (failure_) {
    end(*pending, failure_);
    std::rethrow_exception(failure_);
  }
  pending_.push_back(pending);
  if (pending_.size() == 1) changed_.notify_all();
}

void Core::await_inputs(PendingOp& pending, Stream stream) {
  std::unique_lock hold(mutex_);
  const std::vector<Event> before = pending.after_;
  const InUse in_use(*this, before);
  if (pending.is_captured) give_back_all(pending.after_);  // nobody asks for them
  hold.unlock();
  for (Event reached : before) {
    CUDA_TRY(facts_.caller, api().cuda.cudaStreamWaitEvent(stream, reached));
  }
}

void Core::arm(PendingOp& pending, Stream stream) {
  Event done = record(stream);
  const std::lock_guard hold(mutex_);
  if (pending.is_settled()) return give_back(done);
  pending.done_ = done;
  if (!pending.is_captured) return;
  captured_.push_back(done);
  forget(pending);  // from now on it is the graph's
}

bool Core::is_armed(const PendingOp& pending) const {
  const std::lock_guard hold(mutex_);
  return pending.done_ != nullptr || pending.is_settled();
}

void Core::compare(PendingOp& pending, Stream stream, std::function<std::string()> compare) {
  Event compared = record(stream);
  const std::lock_guard hold(mutex_);
  if (pending.is_settled()) return give_back(compared);
  pending.compared_ = compared;
  pending.compare_ = std::move(compare);
}

void Core::drop(PendingOp& pending) {
  const std::lock_guard hold(mutex_);
  end(pending, failure_ ? failure_ : abandoned());
}

void Core::hand_over(const PendingOp& pending) {
  std::unique_lock hold(mutex_);
  const Event done = pending.done_;
  if (done == nullptr) return;  // it has settled: there is nothing to wait for
  const InUse in_use(*this, {done});
  hold.unlock();
  for (Stream stream : pending.joined) {
    CUDA_TRY(facts_.caller, api().cuda.cudaStreamWaitEvent(stream, done));
  }
}

bool Core::is_capturing(Stream stream) const {
  bool capturing = false;
  CUDA_TRY(facts_.caller, api().cuda.cudaStreamIsCapturing(stream, &capturing));
  return capturing;
}

/// In the relaxed mode: in any other the question ends a capture that another thread is at.
CudaCode Core::query(Event event) const {
  const CudaApi& cuda = api().cuda;
  int mode = kCaptureRelaxed;
  if (const CudaCode code = cuda.cudaThreadExchangeStreamCaptureMode(&mode); code != kCudaSuccess)
    return code;
  const CudaCode answer = cuda.cudaEventQuery(event);
  const CudaCode code = cuda.cudaThreadExchangeStreamCaptureMode(&mode);
  return code != kCudaSuccess ? code : answer;
}

void Core::end(PendingOp& pending, std::exception_ptr thrown) {
  give_back_all(pending.after_);
  if (pending.is_settled()) return;
  pending.settle(std::move(thrown));
  pending.compare_ = nullptr;
  progress_at_[static_cast<std::size_t>(pending.index)] = clock_.now();
  if (pending.is_captured) pending.done_ = nullptr;
  give_back(pending.done_);
  give_back(pending.compared_);
}

void Core::forget(const PendingOp& pending) {
  std::erase_if(pending_, [&](const auto& other) { return other.get() == &pending; });
}

Core::Seen Core::ask(const PendingOp& pending, Event event, std::string& wrong) const {
  const CudaCode code = query(event);
  if (code == kCudaSuccess) return Seen::kDone;
  if (code == kCudaNotReady) return Seen::kNo;
  wrong = "rank " + std::to_string(facts_.caller.rank) +
          ": cudaEventQuery: " + api().cuda.cudaGetErrorString(code) + " (code " + std::to_string(code) +
          ") at " + pending.name();
  return Seen::kWrong;
}

bool Core::settle(PendingOp& pending) {
  std::string wrong;
  AbortKind kind = AbortKind::kMemberDied;
  std::unique_lock hold(mutex_);
  if (pending.is_settled()) return true;
  const bool compares = pending.compared_ != nullptr && !pending.is_captured;
  const Event asked = compares ? pending.compared_ : pending.done_;
  if (asked == nullptr) return false;
  if (pending.is_captured) {
    hold.unlock();
    hand_over(pending);  // for the graph to be whole
    hold.lock();
    end(pending, nullptr);
    return true;
  }
  Seen seen;
  {
    const InUse in_use(*this, {asked});
    hold.unlock();
    seen = ask(pending, asked, wrong);
    if (seen == Seen::kNo) return false;
  }
  hold.lock();
  if (pending.is_settled()) return true;  // by another thread, which had the first word
  if (compares && seen == Seen::kDone) {
    kind = AbortKind::kMismatch;
    if (pending.compared_ == asked) {
      give_back(pending.compared_);
      wrong = pending.compare_();
    }
    if (wrong.empty()) {
      hold.unlock();
      return settle(pending);  // the calls agree: is it done?
    }
  } else if (seen == Seen::kDone) {
    const Communicators communicators = communicators_;
    hold.unlock();
    kind = AbortKind::kPeerLost;
    wrong = error_of(communicators);
    hold.lock();
    if (wrong.empty()) {
      end(pending, nullptr);
      forget(pending);
      return true;
    }
  }
  hold.unlock();
  fail(kind, wrong);
  return true;
}

bool Core::settle_within(PendingOp& pending, Duration limit) {
  const Instant deadline = clock_.now() + limit;
  for (unsigned turn = 0; !settle(pending); ++turn) {
    if (clock_.now() >= deadline) return false;
    pause_turn(turn);
  }
  return true;
}

void Core::drain() {
  for (unsigned turn = 0;; ++turn) {
    std::shared_ptr<PendingOp> oldest;
    {
      const std::lock_guard hold(mutex_);
      if (pending_.empty()) return;
      oldest = pending_.front();
    }
    if (settle(*oldest)) {
      turn = 0;
    } else {
      pause_turn(turn);
    }
  }
}

void Core::watch() {
  std::unique_lock hold(mutex_);
  for (;;) {
    if (failure_ && !stopped_) {
      stop_communicators(hold);
      continue;
    }
    if (leaving_) return;
    if (failure_) {
      changed_.wait(hold);
      continue;
    }
    hold.unlock();
    if (abort_reason().empty()) check_deadlines();
    hold.lock();
    if (!leaving_ && !failure_) changed_.wait_for(hold, pending_.empty() ? kIdleTick : kBusyTick);
  }
}

void Core::look_on() {
  if (api().cuda.cudaSetDevice(facts_.device) != kCudaSuccess) {
    fail(AbortKind::kMemberDied, "rank " + std::to_string(facts_.caller.rank) + ": cudaSetDevice failed");
  }
  std::unique_lock hold(mutex_);
  while (!leaving_) {
    if (pending_.empty()) {
      changed_.wait(hold);
      continue;
    }
    asking_since_ = clock_.now();
    hold.unlock();
    look();
    hold.lock();
    asking_since_ = Instant{};
    if (!leaving_) changed_.wait_for(hold, kBusyTick);
  }
}

void Core::look() {
  std::vector<std::shared_ptr<PendingOp>> pending;
  {
    const std::lock_guard hold(mutex_);
    // Who is at a capture joins what is captured to its streams, which could be over by the time we did.
    std::copy_if(pending_.begin(), pending_.end(), std::back_inserter(pending),
                 [](const auto& op) { return !op->is_captured; });
  }
  std::array<bool, kCommunicators> waiting{};  // within a communicator they end in order
  for (const auto& op : pending) {
    bool& waits = waiting[static_cast<std::size_t>(op->index)];
    if (waits || settle(*op)) continue;
    waits = true;
    look_before(*op);
  }
}

/// Whether what was on its streams before it is done: its time begins then.
void Core::look_before(PendingOp& pending) {
  for (;;) {
    std::unique_lock hold(mutex_);
    if (pending.is_settled() || pending.after_.empty()) return;
    const Event last = pending.after_.back();
    {
      const InUse in_use(*this, {last});
      hold.unlock();
      if (query(last) == kCudaNotReady) return;
    }
    hold.lock();
    if (pending.is_settled() || pending.after_.empty() || pending.after_.back() != last) return;
    give_back(pending.after_.back());
    pending.after_.pop_back();
    if (pending.after_.empty()) pending.issued_at = clock_.now();
  }
}

void Core::check_deadlines() {
  std::string late;
  Duration limit = facts_.timeout;
  {
    const std::lock_guard hold(mutex_);
    const Instant now = clock_.now();
    const bool device_answers = asking_since_ == Instant{} || now - asking_since_ <= facts_.timeout;
    std::array<bool, kCommunicators> seen{};
    for (const auto& pending : pending_) {
      if (std::exchange(seen[static_cast<std::size_t>(pending->index)], true)) continue;
      const Instant since =
          std::max(pending->issued_at, progress_at_[static_cast<std::size_t>(pending->index)]);
      const bool has_begun = pending->is_captured || pending->after_.empty() || !device_answers;
      limit = facts_.timeout * (has_begun ? 1 : kTimeoutsBefore);
      if (now - since <= limit) continue;
      late = pending->name() + (has_begun ? "" : ", behind what its streams had to do before");
      break;
    }
  }
  if (late.empty()) return;
  fail(AbortKind::kTimeout,
       "rank " + std::to_string(facts_.caller.rank) + " waited " + seconds_text(limit) + " for " + late);
}

OnDevice::OnDevice(const Caller& caller, int device) : caller_(caller) {
  CUDA_TRY(caller_, caller_.api->cuda.cudaGetDevice(&before_));
  if (before_ == device) return;
  CUDA_TRY(caller_, caller_.api->cuda.cudaSetDevice(device));
  changed_ = true;
}

OnDevice::~OnDevice() {
  if (changed_ && caller_.api->cuda.cudaSetDevice(before_) != kCudaSuccess) {
    log(LogLevel::kWarning, "cudaSetDevice failed on rank " + std::to_string(caller_.rank));
  }
}

}  // namespace troupe::collectives::nccl
