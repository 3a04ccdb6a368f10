#include "scheduler/cli/actor_output.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/standard_output.hpp"
#include "runtime/node/worker_outputs.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/jobs/head_session.hpp"
#include "scheduler/jobs/job_output.hpp"

namespace troupe::cli {
namespace {

/// Lives that are asked for beyond the last one that somebody knows.
constexpr std::int32_t kMostLives = 10'000;

/// The living actor of that id or name; null: none.
const wire::ActorStatus* find(const wire::StatusAnswer& all, const std::string& name) {
  const auto named = [&](const wire::ActorStatus& a) { return a.record.spec.name == name; };
  const auto is_it = [&](const wire::ActorStatus& a) { return to_string(a.record.actor) == name; };
  if (std::none_of(all.actors.begin(), all.actors.end(), is_it) &&
      std::none_of(all.actors.begin(), all.actors.end(), named))
    return nullptr;
  return &actor_called(all, name);
}

class ActorOutput {
 public:
  ActorOutput(const JobClientOptions& where, const wire::StatusAnswer& all, const std::string& name,
              const OutputOptions& reading)
      : where_(where),
        name_(name),
        reading_(reading),
        head_(ClusterFolder::find(where.folder).value(),
              where.address.empty() ? std::nullopt : std::optional(parse_endpoint(where.address).value())) {
    look_at(all);
    id_ = is_alive_ ? to_string(find(all, name)->record.actor) : name;
  }

  int print() {
    OutputReader reader(
        std::string(node::kActorLog) + id_,
        [this](wire::LogAsk ask) -> Result<wire::LogPart> {
          auto bytes = head_.ask(std::move(ask), kAnswers);
          if (!bytes) return bytes.error();
          return wire::decode<wire::LogPart>(*bytes);
        },
        take_output, reading_.follow, reading_.since_ms);
    if (!begin(reader)) return 0;
    for (;;) {
      if (has_output_failed()) return 1;
      const auto got = reader.read();
      if (got && *got == OutputReader::Got::kSome) continue;
      const bool is_away = !got && got.error().code == ErrorCode::kTimeout;  // the head
      if (!got && got.error().code != ErrorCode::kUnavailable && !(is_away && reading_.follow))
        throw_error(got.error());
      const bool is_over = got ? *got == OutputReader::Got::kEnd : !is_away;  // this life's output
      if (reading_.follow && !look_again()) continue;
      if (is_over && reader.attempt() < last_life_) {
        if (!got) reader.note(got.error().message());
        reader.end_lines();
        reader.go_to_attempt(reader.attempt() + 1);
        reader.note("life " + std::to_string(reader.attempt()) + " begins");
      } else if (!reading_.follow && !got) {
        throw_error(got.error());
      } else if (!reading_.follow || (!is_alive_ && (is_over || was_gone_))) {
        reader.end_lines();
        if (reading_.follow) reader.note("actor " + escape_name(name_) + " has ended");
        return 0;
      } else {
        was_gone_ = !is_alive_;  // looked at once more, so that its last lines are there
        std::this_thread::sleep_for(kLook);
      }
    }
  }

 private:
  void look_at(const wire::StatusAnswer& all) {
    const wire::ActorStatus* actor = find(all, id_.empty() ? name_ : id_);
    is_alive_ = actor != nullptr;
    if (actor != nullptr) last_life_ = static_cast<std::int32_t>(actor->record.incarnation);
  }

  /// False: the head is away, and may come back. Throws what it says once it has been away for long.
  bool look_again() {
    try {
      look_at(ask_status(where_.folder, where_.address));
    } catch (const Error& error) {
      const bool may_pass = error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout;
      if (!may_pass || clock_.now() - heard_ > kAway) throw;
      std::this_thread::sleep_for(kLook);
      return false;
    }
    heard_ = clock_.now();
    return true;
  }

  /// Finds the first life whose output is there, or the last one's last lines. False: it has written nothing,
  /// and nothing can follow.
  bool begin(OutputReader& reader) {
    if (reading_.tail >= 0) {
      const auto begun = reader.begin_at_tail(reading_.tail);
      if (begun && reader.attempt() > 0) last_life_ = std::max(last_life_, reader.attempt());
      if (begun || is_alive_) return true;
      refuse(begun.error());
    }
    // Of one that died nobody but nodes knows how many lives it had.
    const auto newest =
        head_.ask(wire::LogAsk{.id = std::string(node::kActorLog) + id_, .most_bytes = 1}, kAnswers);
    if (!newest && !is_alive_) refuse(newest.error());
    if (newest) last_life_ = std::max(last_life_, wire::decode<wire::LogPart>(*newest).value().attempt);
    for (std::int32_t life = 1; life <= std::min(last_life_, kMostLives); ++life) {
      const auto there = head_.ask(
          wire::LogAsk{.id = std::string(node::kActorLog) + id_, .attempt = life, .most_bytes = 1}, kAnswers);
      if (there) return reader.go_to_attempt(life), true;
      reader.note("the output of life " + std::to_string(life) + " is gone: " + there.error().why);
    }
    reader.go_to_attempt(last_life_);
    return reading_.follow && is_alive_;
  }

  [[noreturn]] void refuse(const ErrorInfo& error) const {
    if (error.code != ErrorCode::kUnavailable) throw_error(error);
    throw_error({ErrorCode::kRefused, "there are no logs of " + name_,
                 "no job, no live node and no actor has that id or name, or its output is gone",
                 "troupe job list, troupe node list and troupe actor list show those that there are"});
  }

  const JobClientOptions where_;
  const std::string name_;
  const OutputOptions reading_;
  HeadSession head_;
  MonotonicClock clock_;
  Instant heard_ = clock_.now();  ///< the head has answered
  std::string id_;
  bool is_alive_ = false;
  bool was_gone_ = false;
  std::int32_t last_life_ = 0;  ///< that somebody knows of
};

}  // namespace

int print_output_of_actor(const JobClientOptions& where, const wire::StatusAnswer& all,
                          const std::string& name, const OutputOptions& reading) {
  return ActorOutput(where, all, name, reading).print();
}

}  // namespace troupe::cli
