#include "actors/train/driver/roster.hpp"

#include <algorithm>
#include <utility>

namespace troupe::train {
namespace {

const char* name_of(SpawnKind kind) {
  return kind == SpawnKind::kTrainer ? "a trainer" : "a loader";
}

}  // namespace

bool SignsOfLife::note(const Progress& news, Instant now) {
  const bool further = news.count != progress.count;
  if (further || !news.computes) since = now;
  progress = news;
  return further;
}

std::string describe(const TrainerSeat& trainer) {
  const std::string rank = trainer.rank < 0 ? "" : " (rank " + std::to_string(trainer.rank) + ")";
  return "trainer " + to_string(trainer.ready.actor) + rank;
}

std::string could_not_start(SpawnKind kind, const std::string& why) {
  return std::string(name_of(kind)) + " could not be started: " + why;
}

// Trainers.

TrainerSeat* Roster::find(ActorId trainer) {
  const auto at = trainers_.find(trainer);
  return at == trainers_.end() ? nullptr : &at->second;
}

TrainerSeat* Roster::add(const TrainerReady& ready, Instant now) {
  spawns_.erase(ready.token);
  if (dead_.contains(ready.actor) || trainers_.contains(ready.actor)) return nullptr;
  TrainerSeat& trainer = trainers_[ready.actor];
  trainer.ready = ready;
  trainer.life.last_heard = trainer.life.since = now;
  trainer.arrival = ++arrivals_;
  trainer.quiesced = true;  // it holds nothing, and is in no collective
  return &trainer;
}

std::optional<TrainerSeat> Roster::remove(ActorId trainer) {
  auto seat = trainers_.extract(trainer);
  if (seat.empty()) return std::nullopt;
  dead_.insert(trainer);
  return std::move(seat.mapped());
}

int Roster::staying() const {
  return static_cast<int>(std::count_if(trainers_.begin(), trainers_.end(), [](const auto& entry) {
    return !entry.second.killed && !entry.second.leaves;
  }));
}

/// The rules of every process.
std::optional<Roster::Overdue> Roster::overdue(const SignsOfLife& life, ActorId actor, const std::string& who,
                                               Instant now) const {
  const auto& deadlines = config_->deadlines;
  if (now - life.last_heard >= deadlines.silence)
    return Overdue{actor, "no sign of life",
                   who + " gave no sign of life for " + seconds_of(deadlines.silence)};
  if (!life.hangs(now, deadlines.hang)) return std::nullopt;
  const std::string why = "it has shown no progress for " + seconds_of(deadlines.hang) +
                          " (deadlines.hang) in " + life.progress.doing;
  return Overdue{actor, why, who + " is killed: " + why, true};
}

std::optional<Roster::Overdue> Roster::next_overdue(std::optional<ActorId> after, Instant now) const {
  for (auto at = after ? trainers_.upper_bound(*after) : trainers_.begin(); at != trainers_.end(); ++at) {
    const auto& [id, trainer] = *at;
    if (trainer.killed) continue;
    if (auto late = overdue(trainer.life, id, describe(trainer), now)) return late;
    if (!trainer.quiesced && now >= trainer.deadline)
      return Overdue{id, "it did not leave its collective in time",
                     describe(trainer) + " did not leave its collective within " +
                         seconds_of(config_->deadlines.quiesce)};
  }
  return std::nullopt;
}

std::vector<ActorId> Roster::unconfirmed(Instant now) const {
  std::vector<ActorId> found;
  for (const auto& [id, trainer] : trainers_) {
    if (trainer.killed && now >= trainer.deadline) found.push_back(id);
  }
  return found;
}

std::string Roster::who_waits() const {
  std::string text;
  for (const auto& [id, trainer] : trainers_) {
    const Progress& at = trainer.life.progress;
    text += (text.empty() ? "" : ", ") + describe(trainer) + (at.computes ? " computes" : " waits") +
            (at.doing.empty() ? "" : " in " + at.doing);
  }
  return text.empty() ? "no trainer is up" : text;
}

// Loaders.

std::vector<LoaderInfo> Roster::loader_list() const {
  std::vector<LoaderInfo> list;
  for (const auto& [id, loader] : loaders_) list.push_back(loader.info);
  return list;
}

void Roster::announce_loaders(DriverActions& out) const {
  const SetLoaders order{loader_list()};
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.killed) out.push_back(SendOrder{id, order});
  }
}

bool Roster::add(const LoaderReady& ready, Instant now, DriverActions& out) {
  spawns_.erase(ready.token);
  if (dead_.contains(ready.actor)) return false;
  if (static_cast<int>(loaders_.size()) >= config_->loaders && !loaders_.contains(ready.actor)) {
    dead_.insert(ready.actor);
    out.push_back(KillActor{ready.actor, "there are loaders enough"});
    return true;
  }
  loaders_[ready.actor] = {{ready.actor, ready.node, ready.address}, {now, {}, now}};
  announce_loaders(out);
  return true;
}

std::optional<JobFailed> Roster::lose_loader(ActorId loader, const std::string& why, bool fault, Instant now,
                                             DriverActions& out) {
  dead_.insert(loader);
  loaders_.erase(loader);
  if (loaders_.empty()) loaderless_since_ = now;
  const std::string what = "loader " + to_string(loader) + " died: " + why;
  if (fault) out.push_back(Notice{what, loader});
  announce_loaders(out);
  return fault ? count_failure(SpawnKind::kLoader, what, now, out) : std::nullopt;
}

bool Roster::note(const LoaderHeartbeat& news, Instant now) {
  const auto at = loaders_.find(news.actor);
  if (at == loaders_.end()) return false;
  at->second.life.last_heard = now;
  return at->second.life.note(news.progress, now);
}

std::vector<Roster::Overdue> Roster::overdue_loaders(Instant now) const {
  std::vector<Overdue> found;
  for (const auto& [id, loader] : loaders_) {
    if (auto late = overdue(loader.life, id, "loader " + to_string(id), now))
      found.push_back(*std::move(late));
  }
  std::stable_partition(found.begin(), found.end(), [](const Overdue& late) { return !late.hangs; });
  return found;
}

std::optional<JobFailed> Roster::check_loaderless(Instant now) const {
  if (!loaders_.empty() || now - loaderless_since_ < config_->deadlines.gather) return std::nullopt;
  return JobFailed{"no loader could be started in time: " + loader_restarts_.last_failure, {}};
}

bool Roster::somebody_computes(const std::vector<ActorId>& members) const {
  return std::any_of(members.begin(), members.end(),
                     [&](ActorId member) { return at(member).life.progress.computes; }) ||
         std::any_of(loaders_.begin(), loaders_.end(),
                     [](const auto& entry) { return entry.second.life.progress.computes; });
}

// Starting.

void Roster::spawn_missing(bool trainers, Instant now, DriverActions& out) {
  if (trainers) spawn_missing(SpawnKind::kTrainer, config_->trainers, staying(), now, out);
  spawn_missing(SpawnKind::kLoader, config_->loaders, static_cast<int>(loaders_.size()), now, out);
}

void Roster::spawn_missing(SpawnKind kind, int wanted, int have, Instant now, DriverActions& out) {
  const Restarts& of = restarts(kind);
  if (of.given_up || now < of.not_before) return;
  for (const auto& [token, spawn] : spawns_) have += spawn.kind == kind ? 1 : 0;
  for (; have < wanted; ++have) {
    const std::uint64_t token = ++last_token_;
    spawns_[token] = {kind, now + config_->deadlines.spawn};
    out.push_back(
        SpawnActor{kind, token, std::to_string(have) + " of " + std::to_string(wanted) + " are there"});
  }
}

std::optional<SpawnKind> Roster::take_spawn(std::uint64_t token) {
  const auto spawn = spawns_.extract(token);
  return spawn.empty() ? std::nullopt : std::optional(spawn.mapped().kind);
}

bool Roster::spawn_waits(const SpawnWaits& spawn, Instant now, DriverActions& out) {
  const auto at = spawns_.find(spawn.token);
  if (at == spawns_.end()) return false;
  const SpawnKind kind = at->second.kind;
  at->second.deadline = now + config_->deadlines.spawn;  // it has not begun to start
  if (std::exchange(at->second.waits_for, spawn.why) == spawn.why) return true;
  if (std::exchange(restarts(kind).waits_for, spawn.why) != spawn.why)
    out.push_back(Notice{std::string(name_of(kind)) + " waits: " + spawn.why});
  return true;
}

std::optional<JobFailed> Roster::spawn_failed(SpawnKind kind, const std::string& why, Instant now,
                                              DriverActions& out) {
  if (why != restarts(kind).last_failure)  // said once
    out.push_back(Notice{could_not_start(kind, why), {}});
  return count_failure(kind, why, now, out);
}

std::optional<JobFailed> Roster::check_spawns(Instant now, DriverActions& out) {
  std::vector<std::uint64_t> late;
  for (const auto& [token, spawn] : spawns_) {
    if (now >= spawn.deadline) late.push_back(token);
  }
  const std::string why = "did not start within " + seconds_of(config_->deadlines.spawn);
  for (const std::uint64_t token : late) {
    out.push_back(CancelSpawn{token, "no answer in time"});
    const SpawnKind kind = *take_spawn(token);
    out.push_back(DeadlineExpired{std::string(name_of(kind)) + " " + why});
    if (auto failure = spawn_failed(kind, "it " + why, now, out)) return failure;
  }
  return std::nullopt;
}

std::optional<JobFailed> Roster::count_failure(SpawnKind kind, const std::string& why, Instant now,
                                               DriverActions& out) {
  Restarts& of = restarts(kind);
  ++of.failures;
  of.last_failure = why;
  of.not_before = std::max(of.not_before, now + config_->restart.pause_after(of.failures));
  if (of.failures <= config_->restart.budget || of.given_up) return std::nullopt;
  of.given_up = true;
  const std::string text = std::to_string(of.failures) + " failures without progress, the last one: " + why;
  out.push_back(Notice{"nothing is started again after " + text, {}});
  const bool trainers = kind == SpawnKind::kTrainer;
  const int left = static_cast<int>(trainers ? trainers_.size() : loaders_.size());
  if (left >= (trainers ? config_->min_trainers : 1)) return std::nullopt;
  return JobFailed{text, {}};
}

void Roster::made_progress(const std::vector<ActorId>& members) {
  for (const ActorId member : members) {
    if (!std::exchange(at(member).made_progress, true)) trainer_restarts_.failures = 0;
  }
  for (auto& [id, loader] : loaders_) {
    if (!std::exchange(loader.made_progress, true)) loader_restarts_.failures = 0;
  }
}

std::optional<std::string> Roster::given_up_trainers() const {
  return trainer_restarts_.given_up ? std::optional(trainer_restarts_.last_failure) : std::nullopt;
}

JobFailed Roster::too_few_came() const {
  const bool starts = std::any_of(spawns_.begin(), spawns_.end(),
                                  [](const auto& spawn) { return spawn.second.kind == SpawnKind::kTrainer; });
  const auto& last_failure = trainer_restarts_.last_failure;
  const auto& waits_for = trainer_restarts_.waits_for;
  return {"of " + std::to_string(config_->min_trainers) + " trainers that are needed (min_trainers) " +
              std::to_string(trainers_.size()) + " came within " + seconds_of(config_->deadlines.gather) +
              " (deadlines.gather)" + (last_failure.empty() ? "" : ": " + last_failure),
          !starts ? ""
          : waits_for.empty()
              ? "one more was asked for and has not started: see that its CPUs (trainer_cpus) "
                "are free"
              : "one more waits: " + waits_for};
}

void Roster::shift(Duration gap) {
  for (auto& [id, trainer] : trainers_) {
    trainer.life.shift(gap);
    trainer.deadline += gap;
  }
  for (auto& [id, loader] : loaders_) loader.life.shift(gap);
  for (auto& [token, spawn] : spawns_) spawn.deadline += gap;
  loaderless_since_ += gap;
}

}  // namespace troupe::train
