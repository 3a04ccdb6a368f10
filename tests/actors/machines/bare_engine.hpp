/// An engine that holds a state and computes nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/train/engine/engine.hpp"

namespace troupe::train {

class BareEngine : public TrainEngine {
 public:
  explicit BareEngine(std::vector<StatePart> parts) : parts_(std::move(parts)) {}

  void enter_thread() override {}
  std::string numerics() const override { return "none"; }
  State state() override { return {parts_, nullptr}; }
  std::unique_ptr<StateCopy> copy_state() override { return nullptr; }
  std::size_t weight_parts() override { return parts_.size(); }
  using TrainEngine::install;
  void install(std::span<const StatePart> /*parts*/, const PartBytes& /*bytes_of*/) override {}
  void install_with_own_options(std::vector<StatePart> /*parts*/) override {}
  void install_initial() override {}
  std::size_t group_bytes(const std::vector<collectives::LeafInterval>& /*leaves*/,
                          bool /*gradients*/) const override {
    return 0;
  }
  void attach(std::shared_ptr<collectives::ProcessGroup> /*group*/,
              std::shared_ptr<collectives::ProcessGroup> /*gradients*/) override {}
  void detach() override {}
  void rehearse() override {}
  void begin_step(std::int64_t /*step*/, int /*epoch*/) override {}
  void run_leaf(int /*leaf*/, const data::BatchView& /*batch*/) override {}
  std::size_t batches_done() override { return 0; }
  std::vector<LeafResult> results() override { return {}; }
  void finish_step() override {}
  void abandon_step() override {}
  StepValues apply(bool /*ends_epoch*/, double /*total_weight*/) override { return {}; }
  StepValues skip(bool /*ends_epoch*/) override { return {}; }
  std::vector<std::byte> step_record() override { return {}; }
  void take_record(std::int64_t /*step*/, int /*epoch*/, std::span<const std::byte> /*record*/) override {}
  std::vector<Figure> evaluate(std::int64_t /*piece*/, int /*epoch*/,
                               const data::BatchView& /*batch*/) override {
    return {};
  }

 protected:
  std::vector<StatePart> parts_;
};

}  // namespace troupe::train
