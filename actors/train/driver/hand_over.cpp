/// Trainers and loaders that go from one job to the next, with what they have loaded, and the state that a
/// trainer keeps for other jobs.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <type_traits>

#include "actors/train/driver/train_driver.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::train {
namespace {

Result<wire::Bytes> read_piece(const StateFile& file, std::uint64_t offset) {
  const auto failed = [&](const char* call) { return io_error(std::string(call) + " " + file.path, errno); };
  const UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return failed("open");
  wire::Bytes piece(static_cast<std::size_t>(
      std::min<std::uint64_t>(file.size - std::min(offset, file.size), kStatePiece)));
  for (std::size_t at = 0; at < piece.size();) {
    const ssize_t got = ::pread(fd.get(), piece.data() + at, piece.size() - at,
                                static_cast<off_t>(file.offset + offset + at));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = ENODATA;
    if (got <= 0) return failed("read");
    at += static_cast<std::size_t>(got);
  }
  return piece;
}

}  // namespace

void TrainDriver::begin_from(const StateFile& file, const StateDonor& donor) {
  snapshot_file_ = file;
  donor_ = donor;
}

void TrainDriver::add_snapshot(const wire::Bytes& piece) {
  snapshot_.insert(snapshot_.end(), piece.begin(), piece.end());
}

wire::Bytes TrainDriver::snapshot(std::uint64_t offset) {
  return snapshot_file_.path.empty() ? state_piece(snapshot_, offset)
                                     : read_piece(snapshot_file_, offset).value();
}

StateDonor TrainDriver::state_donor() const {
  return donor_;
}

void TrainDriver::donor_lost(const std::string& why) {
  if (donor_.who.empty()) return;
  emit(report::Warning{"the state did not come from " + std::exchange(donor_, {}).who + " (" +
                       for_people(why) + "): it is read from " + snapshot_file_.path});
}

Future<StateDonor> TrainDriver::keep_state() {
  Promise<StateDonor> kept;
  auto& holders = end_state_.holders;
  std::erase_if(holders, [this](ActorId holder) { return !trainers_.contains(holder); });
  if (holders.empty()) {
    kept.fail({ErrorCode::kUnavailable, "the job's state is lost", "no trainer is left that has it", ""});
    return kept.future();
  }
  const ActorHandle<Trainer> holder = trainers_.at(holders.front()).handle;
  holder.call<&Trainer::keep>().then([this, kept, holder](Result<KeptState> what) mutable {
    if (!what) return kept.fail(what.error());
    if (what->steps != end_state_.steps || what->lineage != end_state_.lineage)
      return kept.fail({ErrorCode::kUnavailable, "the state is not kept", "its trainer went on", ""});
    kept.set(StateDonor{holder.address(), what->number, names_[holder.address().actor]});
  });
  return kept.future();
}

void TrainDriver::take_over(const Workers& workers) {
  spare_ = workers;
  for (const auto& all : {workers.trainers, workers.loaders})
    taken_.insert(taken_.end(), all.begin(), all.end());
  if (static_cast<int>(spare_.trainers.size()) >= options_.min_trainers) return;
  // Others would have to start together with these.
  for (const ActorAddress& trainer : std::exchange(spare_.trainers, {}))
    end_worker(trainer, "too few are left of its run");
}

Workers TrainDriver::release() {
  Workers left;
  for (const auto& [id, seat] : std::exchange(trainers_, {})) left.trainers.push_back(seat.handle.address());
  for (const auto& [id, seat] : std::exchange(loaders_, {})) left.loaders.push_back(seat.handle.address());
  for (const auto& all : {left.trainers, left.loaders}) {
    for (const ActorAddress& each : all) std::erase(taken_, each);
  }
  finish(ErrorInfo{ErrorCode::kAborted, "the job was ended", "its workers go on with another one", ""});
  end_actors();
  return left;
}

void TrainDriver::end_worker(const ActorAddress& worker, const std::string& why) {
  std::erase(taken_, worker);
  session_.kill(worker, why);
}

template <class Actor>
Future<ActorHandle<Actor>> TrainDriver::start_worker(const ActorOptions& options) {
  const auto started =
      session_.spawn_async<Actor>(options, options_.settings, this_actor().self<TrainDriver>());
  std::erase_if(starting_, [](const auto& one) { return one->ready(); });
  starting_.push_back(started.state());
  return started;
}
template Future<ActorHandle<Trainer>> TrainDriver::start_worker<Trainer>(const ActorOptions&);

/// One that was taken over, or, where it has died meanwhile, another one.
template <class Actor>
Future<ActorHandle<Actor>> TrainDriver::employ(const ActorAddress& worker, const ActorOptions& otherwise) {
  Promise<ActorHandle<Actor>> employed;
  const auto future = employed.future();
  const ActorHandle<Actor> handle(&session_.process(), worker);
  const auto me = this_actor().self<TrainDriver>();
  handle.template call<&Actor::employ>(options_.settings, me)
      .then([this, me, handle, otherwise, employed](Result<void> done) mutable {
        if (done && !over_) return employed.set(handle);
        end_worker(handle.address(), "it was not employed");
        const bool is_gone = !done && (done.error().code == ErrorCode::kActorDied ||
                                       done.error().code == ErrorCode::kUnavailable);
        if (over_ || !is_gone)
          return employed.fail(done ? ErrorInfo{ErrorCode::kAborted, "the job is over", "", ""}
                                    : done.error());
        if constexpr (std::is_same_v<Actor, Loader>) {
          if (machine_ == nullptr) first_.starts(MonotonicClock().now());  // it has as long as any other
        }
        start_worker<Actor>(otherwise).then([employed](Result<ActorHandle<Actor>> other) mutable {
          if (other) return employed.set(*other);
          employed.fail(other.error());
        });
      });
  // Another model or other datasets may take it nearly as long as one that is started.
  this_actor().run_after(options_.deadlines.spawn * 3 / 4, [this, worker, future] {
    if (!future.ready()) end_worker(worker, "it took too long to be employed");
  });
  return future;
}
template Future<ActorHandle<Trainer>> TrainDriver::employ<Trainer>(const ActorAddress&, const ActorOptions&);

Future<ActorHandle<Loader>> TrainDriver::start_loader(int number) {
  const ActorOptions options{.isolated = true, .label = "loader " + std::to_string(number)};
  if (spare_.loaders.empty()) return start_worker<Loader>(options);
  const ActorAddress spare = spare_.loaders.back();
  spare_.loaders.pop_back();
  return employ<Loader>(spare, options);
}

}  // namespace troupe::train
