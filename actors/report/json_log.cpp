#include "actors/report/json_log.hpp"

#include <nlohmann/json.hpp>

namespace troupe::report {
namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json fields(const JobStarted& e) {
  return {{"event", "job_started"}, {"what", e.what}, {"epochs", e.epochs}};
}
ordered_json fields(const StepDone& e) {
  ordered_json object{{"event", "step"},
                      {"epoch", e.epoch},
                      {"step", e.step},
                      {"steps_per_epoch", e.steps_per_epoch},
                      {"loss", e.loss},
                      {"samples_per_s", e.samples_per_s},
                      {"trainers_alive", e.trainers_alive}};
  if (!e.values.empty()) object["values"] = e.values;
  return object;
}
ordered_json fields(const Fault& e) {
  return {{"event", "fault"},
          {"what", e.what},
          {"detected_ms", or_null(e.detected_ms)},
          {"left_ms", or_null(e.left_ms)},
          {"resumed_ms", or_null(e.resumed_ms)}};
}
ordered_json fields(const Resized& e) {
  return {{"event", "resized"}, {"trainers", e.trainers}, {"why", e.why}};
}
ordered_json fields(const Evaluating& e) {
  return {{"event", "evaluating"}, {"epoch", e.epoch}};
}
ordered_json fields(const EpochDone& e) {
  return {{"event", "epoch"},
          {"epoch", e.epoch},
          {"global_step", e.global_step},
          {"metrics", e.metrics},
          {"seconds", e.seconds}};
}
ordered_json fields(const Evaluated& e) {
  return {{"event", "evaluation"},
          {"epoch", e.epoch},
          {"global_step", e.global_step},
          {"metrics", e.metrics},
          {"seconds", e.seconds}};
}
ordered_json fields(const Checkpointed& e) {
  return {{"event", "checkpoint"}, {"global_step", e.global_step}, {"path", e.path}};
}
ordered_json fields(const Resumed& e) {
  return {{"event", "resumed"}, {"global_step", e.global_step}, {"epoch", e.epoch}, {"path", e.path}};
}
ordered_json fields(const Warning& e) {
  return {{"event", "warning"}, {"text", e.text}};
}
ordered_json fields(const JobDone& e) {
  return {{"event", "job_done"},
          {"parameters_sha256", e.state_hash},
          {"steps", e.steps},
          {"seconds", e.seconds},
          {"faults", e.faults},
          {"begun_at", e.begun_at},
          {"expired_deadlines", e.expired},
          {"stopped", e.stopped},
          {"failed_checkpoints", e.failed_checkpoints},
          {"saved", !e.lost_after},
          {"incomplete_logs", e.incomplete_logs}};
}

}  // namespace

std::string json_line(const Event& event, double time_s) {
  ordered_json object = std::visit([](const auto& one) { return fields(one); }, event);
  object["time_s"] = time_s;
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

JsonLog::JsonLog(LogFile file, const Clock& clock)
    : file_(std::move(file)), clock_(clock), opened_at_(clock.now()) {}

Result<void> JsonLog::take(const Event& event) {
  return file_.write(json_line(event, to_seconds(clock_.now() - opened_at_)) + "\n");
}

}  // namespace troupe::report
