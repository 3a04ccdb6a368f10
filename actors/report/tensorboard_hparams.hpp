/// What TensorBoard's HPARAMS page reads: an experiment, and for each session (a trial) what it began with
/// and how it ended. Each is an event (tensorboard_log.hpp) with a summary whose tag says which, whose
/// metadata has an HParamsPluginData (tensorboard/plugins/hparams/plugin_data.proto, api.proto), and whose
/// tensor is empty.
///
/// The experiment belongs in the top folder, a session's two in its own one, where its metrics are scalars by
/// their tags.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::report {

using HparamValue = std::variant<bool, double, std::string>;

struct Hparam {
  std::string name;
  std::vector<HparamValue> values{};  ///< all that there are; none: any between `low` and `high`
  double low = 0;
  double high = 0;  ///< not above `low`: any number
};

struct HparamsSession {
  std::vector<std::pair<std::string, HparamValue>> values{};
  std::string group{};  ///< that sessions of the same values share; empty: it is alone
};
enum class SessionStatus : std::uint8_t { kSuccess = 1, kFailure = 2 };

/// The bytes of an event; see tf_record(). `wall_time_s`: since 1970.
std::string hparams_experiment(double wall_time_s, const std::string& name,
                               const std::vector<Hparam>& hparams, const std::vector<std::string>& metrics);
std::string hparams_session_start(double wall_time_s, const HparamsSession& session);
std::string hparams_session_end(double wall_time_s, SessionStatus status);

}  // namespace troupe::report
