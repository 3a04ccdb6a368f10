#include "actors/report/json_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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
  return {{"event", "step"},
          {"epoch", e.epoch},
          {"step", e.step},
          {"steps_per_epoch", e.steps_per_epoch},
          {"loss", e.loss},
          {"samples_per_s", e.samples_per_s},
          {"trainers_alive", e.trainers_alive}};
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
ordered_json fields(const EpochDone& e) {
  const double accuracy = e.total > 0 ? static_cast<double>(e.correct) / static_cast<double>(e.total) : 0.0;
  return {{"event", "epoch"},          {"epoch", e.epoch},     {"train_loss", e.train_loss},
          {"test_accuracy", accuracy}, {"correct", e.correct}, {"total", e.total},
          {"seconds", e.seconds}};
}
ordered_json fields(const Checkpointed& e) {
  return {{"event", "checkpoint"}, {"global_step", e.global_step}, {"path", e.path}};
}
ordered_json fields(const Warning& e) {
  return {{"event", "warning"}, {"text", e.text}};
}
ordered_json fields(const JobDone& e) {
  return {{"event", "job_done"},
          {"parameters_sha256", e.state_hash},
          {"steps", e.steps},
          {"seconds", e.seconds},
          {"faults", e.faults}};
}

}  // namespace

std::string json_line(const Event& event, double time_s) {
  ordered_json object = std::visit([](const auto& one) { return fields(one); }, event);
  object["time_s"] = time_s;
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

JsonLog::JsonLog(UniqueFd file, std::string path, const Clock& clock)
    : file_(std::move(file)), path_(std::move(path)), clock_(&clock), opened_at_(clock.now()) {}

Result<JsonLog> JsonLog::open(const std::string& path, const Clock& clock) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!file)
    return io_error("cannot write events to '" + path + "'", errno, "give --json a path that can be written");
  return JsonLog(std::move(file), path, clock);
}

Result<void> JsonLog::write(const Event& event) {
  if (!file_) return {};
  const std::string line = json_line(event, to_seconds(clock_->now() - opened_at_)) + "\n";
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t wrote = ::write(file_.get(), line.data() + at, line.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      auto error = io_error("cannot write events to '" + path_ + "'", errno,
                            "the file is incomplete from here on; training goes on");
      file_.reset();
      return error;
    }
    at += static_cast<std::size_t>(wrote);
  }
  return {};
}

}  // namespace troupe::report
