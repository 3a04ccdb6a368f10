#include "actors/train/api/predictor.hpp"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/train/driver/driver_types.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/snapshot.hpp"

namespace troupe::train {
namespace {

/// Starts that died for each replica that is wanted, with none up, before requests are failed.
constexpr int kMostDeaths = 8;
/// How long the first start may take, and how long none may be up for want of a node or of CPUs.
constexpr Duration kReady = std::chrono::seconds(120);
constexpr RestartPolicy kPauses{.longest_pause = std::chrono::seconds(1)};

bool may_go_again(const ErrorInfo& error) {
  return error.code == ErrorCode::kActorDied || error.code == ErrorCode::kUnavailable;
}

}  // namespace

// The actor.

Replica::Replica(int batch) : batch_(static_cast<std::size_t>(batch)) {
  set_up_numerics();
  at::init_num_threads();
}

int Replica::pid() const {
  return ::getpid();
}

void Replica::add_weights(const wire::Bytes& piece) {
  weights_.insert(weights_.end(), piece.begin(), piece.end());
}

void Replica::load() {
  load(weights_);
  weights_ = {};
}

Future<PredictRow> Replica::predict(const PredictRow& input) {
  if (!inputs_.empty() && inputs_.front().shape != input.shape) answer_all();  // they do not stack
  inputs_.push_back(input);
  const auto answer = answers_.emplace_back().future();
  if (inputs_.size() >= batch_) {
    answer_all();
  } else if (inputs_.size() == 1) {
    this_actor().run([this] { answer_all(); });  // behind the requests that are in the mailbox now
  }
  return answer;
}

void Replica::answer_all() {
  const auto inputs = std::exchange(inputs_, {});
  auto answers = std::exchange(answers_, {});
  if (inputs.empty()) return;
  try {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> samples;
    for (const PredictRow& input : inputs)
      samples.push_back(torch::from_blob(const_cast<float*>(input.values.data()), input.shape));
    const torch::Tensor out = forward(torch::stack(samples)).to(torch::kFloat).contiguous();
    if (out.dim() < 1 || out.size(0) != static_cast<std::int64_t>(inputs.size()))
      throw BadConfig("the net's output is of another number of samples",
                      "it got " + std::to_string(inputs.size()) + " and gave " + c10::str(out.sizes()),
                      "return a row for each sample");
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const torch::Tensor row = out[static_cast<std::int64_t>(i)];
      const auto* values = row.data_ptr<float>();
      answers[i].set(
          PredictRow{row.sizes().vec(), {values, values + row.numel()}, static_cast<int>(inputs.size())});
    }
  } catch (...) {
    for (auto& answer : answers) answer.fail(describe_exception("the forward of a replica"));
  }
}

// Its keeper.

struct ReplicaSet::State : std::enable_shared_from_this<State> {
  State(const Session& on, Start how, wire::Bytes bytes)
      : session(on), start(std::move(how)), weights(std::move(bytes)) {}

  struct Request {
    PredictRow input;
    Promise<std::vector<float>> answer;
  };
  struct Seat {
    ActorHandle<Replica> handle;
    int pid = 0;
    std::size_t under_way = 0;
  };
  using Shared = std::shared_ptr<Request>;

  const Session session;
  const Start start;
  const wire::Bytes weights;

  mutable std::mutex mutex;  ///< guards all below
  std::map<std::uint64_t, Seat> seats;
  std::uint64_t last_seat = 0;
  std::deque<Shared> waiting;  ///< no replica is there
  PredictStats stats;
  const MonotonicClock clock;
  int failures = 0;  ///< in a row,
  int deaths = 0;    ///< of which so many were deaths
  Instant failing_since{};
  bool ended = false;
  std::optional<ErrorInfo> given_up;  ///< why no replica is started again
  std::size_t wanted = 0;
  Promise<void> ready;

  void start_one() {
    start([me = shared_from_this()](Result<ActorHandle<Replica>> replica) {
      if (!replica) return me->failed(replica.error());
      me->load(*replica, 0);
    });
  }
  /// One piece after the other; then it takes requests.
  void load(const ActorHandle<Replica>& replica, std::uint64_t offset) {
    const wire::Bytes piece = state_piece(weights, offset);
    const auto next = [me = shared_from_this(), replica, offset](Result<void> done) {
      if (!done) return me->failed(done.error(), replica);
      me->load(replica, offset + kStatePiece);
    };
    if (!piece.empty()) return replica.call<&Replica::add_weights>(piece).then(next);
    replica.call<static_cast<void (Replica::*)()>(&Replica::load)>().then(
        [me = shared_from_this(), replica](Result<void> done) {
          if (!done) return me->failed(done.error(), replica);
          replica.call<&Replica::pid>().then([me, replica](Result<int> pid) {
            if (!pid) return me->failed(pid.error(), replica);
            me->up(replica, *pid);
          });
        });
  }
  void up(const ActorHandle<Replica>& replica, int pid) {
    std::deque<Shared> now;
    std::uint64_t seat = 0;
    {
      const std::lock_guard lock(mutex);
      if (ended) return session.kill(replica, "the predictor is gone");
      seat = ++last_seat;
      seats[seat] = {replica, pid, 0};
      failures = deaths = 0;
      if (seats.size() == wanted) ready.set();
      now.swap(waiting);
    }
    session.monitor(replica, [weak = weak_from_this(), seat](const std::string&) {
      if (const auto me = weak.lock()) me->lost(seat);
    });
    for (const Shared& request : now) send(request);
  }
  /// A replica did not come up. What is no death (weights that do not fit) fails again next time.
  void failed(const ErrorInfo& why, const ActorHandle<Replica>& replica = {}) {
    std::deque<Shared> hopeless;
    if (replica) session.kill(replica, "it did not come up");
    {
      const std::lock_guard lock(mutex);
      if (ended) return;
      if (failures++ == 0) failing_since = clock.now();
      if (why.code == ErrorCode::kActorDied) ++deaths;
      const bool hopeless_now =
          deaths >= kMostDeaths * static_cast<int>(wanted) || clock.now() - failing_since >= kReady;
      if (may_go_again(why) && (!seats.empty() || !hopeless_now)) {
        const Duration pause = kPauses.pause_after(failures);
        session.process().later(pause, [me = shared_from_this()] { me->start_one(); });
        return;
      }
      if (seats.empty()) {
        hopeless.swap(waiting);
        given_up = why;
      }
      ready.fail(why);
    }
    for (const Shared& request : hopeless) request->answer.fail(why);
  }
  /// Dead, or out of reach: that one may live, with its CPUs.
  void lost(std::uint64_t seat) {
    ActorHandle<Replica> gone;
    {
      const std::lock_guard lock(mutex);
      const auto at = seats.find(seat);
      if (ended || at == seats.end()) return;
      gone = at->second.handle;
      seats.erase(at);
      ++stats.restarts;
    }
    session.kill(gone, "it does not answer");
    start_one();
  }

  void send(const Shared& request) {
    std::uint64_t seat = 0;
    ActorHandle<Replica> to;
    {
      const std::lock_guard lock(mutex);
      const auto best = std::min_element(seats.begin(), seats.end(), [](const auto& a, const auto& b) {
        return a.second.under_way < b.second.under_way;
      });
      if (best == seats.end()) {
        if (given_up) return request->answer.fail(*given_up);
        return waiting.push_back(request);
      }
      ++best->second.under_way;
      seat = best->first;
      to = best->second.handle;
    }
    to.call<&Replica::predict>(request->input)
        .then([me = shared_from_this(), seat, request](Result<PredictRow> row) {
          me->answered(seat, request, std::move(row));
        });
  }
  void answered(std::uint64_t seat, const Shared& request, Result<PredictRow> row) {
    {
      const std::lock_guard lock(mutex);
      const auto at = seats.find(seat);
      if (at != seats.end()) --at->second.under_way;
      if (row) {
        ++stats.answered;
        stats.forwards += 1.0 / row->batch;
        stats.largest_batch = std::max(stats.largest_batch, row->batch);
      } else if (!ended && may_go_again(row.error())) {
        ++stats.sent_again;
      }
    }
    if (row) return request->answer.set(row->values);
    if (ended_now() || !may_go_again(row.error())) return request->answer.fail(row.error());
    lost(seat);  // its monitor may be told later
    send(request);
  }
  void end() {
    std::deque<Shared> left;
    {
      const std::lock_guard lock(mutex);
      ended = true;
      for (const auto& [number, seat] : seats) session.kill(seat.handle, "the predictor is gone");
      left.swap(waiting);
    }
    for (const Shared& request : left)
      request->answer.fail({ErrorCode::kAborted, "a request has no answer", "its predictor is gone", ""});
  }
  bool ended_now() const {
    const std::lock_guard lock(mutex);
    return ended;
  }
};

ReplicaSet::ReplicaSet(const Session& session, Start start, wire::Bytes weights, int replicas)
    : state_(std::make_shared<State>(session, std::move(start), std::move(weights))) {
  state_->wanted = static_cast<std::size_t>(replicas);
  for (int i = 0; i < replicas; ++i) state_->start_one();
  try {
    state_->ready.future().get(kReady);
  } catch (...) {
    state_->end();
    throw;
  }
}

ReplicaSet::~ReplicaSet() {
  state_->end();
}

Future<std::vector<float>> ReplicaSet::predict(PredictRow input) {
  const auto request = std::make_shared<State::Request>(State::Request{std::move(input), {}});
  const auto answer = request->answer.future();
  state_->send(request);
  return answer;
}

PredictStats ReplicaSet::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

std::vector<int> ReplicaSet::pids() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<int> pids;
  for (const auto& [number, seat] : state_->seats) pids.push_back(seat.pid);
  return pids;
}

}  // namespace troupe::train
