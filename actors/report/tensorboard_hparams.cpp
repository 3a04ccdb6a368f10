#include "actors/report/tensorboard_hparams.hpp"

#include "actors/report/protobuf.hpp"

namespace troupe::report {
namespace {

using namespace protobuf;

/// HParamsPluginData's fields, each a message.
enum HparamsPart : int { kExperiment = 2, kSessionStart = 3, kSessionEnd = 4 };

std::string hparams_event(double wall_time_s, const std::string& tag, HparamsPart part,
                          const std::string& message) {
  const std::string no_numbers = bytes_field(2, "");  // one dimension, of none
  const std::string tensor = varint_field(1, 1) + bytes_field(2, no_numbers);
  const std::string plugin = bytes_field(1, "hparams") + bytes_field(2, bytes_field(part, message));
  const std::string value =
      bytes_field(1, "_hparams_/" + tag) + bytes_field(8, tensor) + bytes_field(9, bytes_field(1, plugin));
  return double_field(1, wall_time_s) + bytes_field(5, bytes_field(1, value));
}

/// google.protobuf.Value
std::string value_message(const HparamValue& value) {
  if (const auto* is = std::get_if<bool>(&value)) return varint_field(4, *is ? 1 : 0);
  if (const auto* number = std::get_if<double>(&value)) return double_field(2, *number);
  return bytes_field(3, std::get<std::string>(value));
}

std::string hparam_info(const Hparam& of) {
  // DataType counts from 1: string, bool, float64; values are of one type.
  const bool has_values = !of.values.empty();
  const std::uint64_t type = !has_values || std::holds_alternative<double>(of.values.front()) ? 3
                             : std::holds_alternative<bool>(of.values.front())                ? 2
                                                                                              : 1;
  std::string info = bytes_field(1, of.name) + varint_field(4, type);
  std::string values;
  for (const HparamValue& value : of.values) values += bytes_field(1, value_message(value));
  if (has_values)
    info += bytes_field(5, values);
  else if (of.low < of.high)
    info += bytes_field(6, double_field(1, of.low) + double_field(2, of.high));
  return info;
}

}  // namespace

std::string hparams_experiment(double wall_time_s, const std::string& name,
                               const std::vector<Hparam>& hparams, const std::vector<std::string>& metrics) {
  std::string message = double_field(3, wall_time_s);
  for (const Hparam& hparam : hparams) message += bytes_field(4, hparam_info(hparam));
  for (const std::string& metric : metrics)
    message += bytes_field(5, bytes_field(1, bytes_field(2, metric)));  // in the session's own run: no group
  message += bytes_field(6, name);
  return hparams_event(wall_time_s, "experiment", kExperiment, message);
}

std::string hparams_session_start(double wall_time_s, const HparamsSession& session) {
  std::string message;
  for (const auto& [name, value] : session.values)
    message += bytes_field(1, bytes_field(1, name) + bytes_field(2, value_message(value)));
  if (!session.group.empty()) message += bytes_field(4, session.group);
  message += double_field(5, wall_time_s);
  return hparams_event(wall_time_s, "session_start_info", kSessionStart, message);
}

std::string hparams_session_end(double wall_time_s, SessionStatus status) {
  const std::string message =
      varint_field(1, static_cast<std::uint64_t>(status)) + double_field(2, wall_time_s);
  return hparams_event(wall_time_s, "session_end_info", kSessionEnd, message);
}

}  // namespace troupe::report
