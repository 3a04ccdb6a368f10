#include "actors/tune/sweep_board.hpp"

#include <algorithm>
#include <utility>

namespace troupe::tune {
namespace {

/// Its files come before those that a run of the same second begins.
constexpr const char* kWriter = "sweep";

report::HparamValue hparam_of(const Value& value) {
  if (const auto* is = std::get_if<bool>(&value)) return *is;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return number_of(value);
}

report::Hparam hparam_of(const Parameter& parameter) {
  report::Hparam hparam{.name = parameter.name};
  for (const Value& value : parameter.domain.values) hparam.values.push_back(hparam_of(value));
  if (parameter.domain.kind != Domain::Kind::kNormal) {
    hparam.low = parameter.domain.low;
    hparam.high = parameter.domain.high;
  }
  return hparam;
}

}  // namespace

Result<SweepBoard> SweepBoard::open(std::string folder, Of of, report::TensorBoardLog::WallTime wall_time) {
  auto file = report::TensorBoardFile::open(folder, wall_time(), kWriter);
  if (!file) return file.error();
  return SweepBoard(*std::move(file), std::move(folder), std::move(of), std::move(wall_time));
}

SweepBoard::SweepBoard(report::TensorBoardFile file, std::string folder, Of of,
                       report::TensorBoardLog::WallTime wall_time)
    : file_(std::move(file)),
      folder_(std::move(folder)),
      of_(std::move(of)),
      wall_time_(std::move(wall_time)) {}

std::string SweepBoard::session_of(const Trial& trial) {
  std::string name = "trial-" + std::to_string(trial.number);
  return trial.clones.empty() ? name : name + "." + std::to_string(trial.clones.size());
}

Result<void> SweepBoard::begin(const Trial& trial) {
  const std::string name = session_of(trial);
  if (const auto at = sessions_.find(trial.number); at != sessions_.end()) {
    if (at->second.name == name) return {};
    if (auto ended = end(trial.number, report::SessionStatus::kSuccess); !ended) return ended;
  }
  Session& session = sessions_.insert_or_assign(trial.number, Session{name}).first->second;
  report::HparamsSession of;
  for (const Setting& setting : trial.config.settings)
    of.values.emplace_back(setting.name, hparam_of(setting.value));
  if (of_.repeats > 1) of.group = "config-" + std::to_string(trial.number / of_.repeats);
  auto wrote = write(session, report::hparams_session_start(wall_time_(), of));
  if (!of_.writes_scalars) session.file.reset();  // its run writes next, and its end is in a file behind that
  return wrote;
}

Result<void> SweepBoard::report(const Trial& trial, int epoch, const report::Metrics& metrics) {
  if (!std::exchange(has_experiment_, true)) {
    std::vector<report::Hparam> hparams;
    for (const Parameter& parameter : of_.parameters) hparams.push_back(hparam_of(parameter));
    // What the space computes is none of its parameters.
    for (const Setting& setting : trial.config.settings) {
      const bool known = std::any_of(hparams.begin(), hparams.end(),
                                     [&](const auto& other) { return other.name == setting.name; });
      if (!known) hparams.push_back({.name = setting.name});
    }
    std::vector<std::string> names{of_.metric};
    for (const auto& [name, value] : metrics) {
      if (name != of_.metric) names.push_back(name);
    }
    if (auto wrote = file_.write(report::hparams_experiment(wall_time_(), of_.name, hparams, names)); !wrote)
      return wrote;
  }
  const auto session = sessions_.find(trial.number);
  if (!of_.writes_scalars || session == sessions_.end()) return {};
  report::Figures figures{epoch, epoch, {}};
  for (const auto& [name, value] : metrics) figures.figures.push_back({name, value});
  return write(session->second, report::tensorboard_event(wall_time_(), figures));
}

Result<void> SweepBoard::end(const Trial& trial) {
  return end(trial.number, trial.state == TrialState::kFailed ? report::SessionStatus::kFailure
                                                              : report::SessionStatus::kSuccess);
}

Result<void> SweepBoard::end(int trial, report::SessionStatus status) {
  const auto session = sessions_.find(trial);
  if (session == sessions_.end()) return {};
  auto wrote = write(session->second, report::hparams_session_end(wall_time_(), status));
  sessions_.erase(session);
  return wrote;
}

void SweepBoard::pause(int trial) {
  if (const auto session = sessions_.find(trial); session != sessions_.end()) session->second.file.reset();
}

Result<void> SweepBoard::write(Session& session, std::string_view event) {
  if (!session.file) {
    auto file = report::TensorBoardFile::open(folder_ + "/" + session.name, wall_time_(), kWriter);
    if (!file) return file.error();
    session.file.emplace(*std::move(file));
  }
  return session.file->write(event);
}

}  // namespace troupe::tune
