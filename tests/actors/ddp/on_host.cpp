#include "tests/actors/ddp/on_host.hpp"

#include <exception>
#include <span>
#include <utility>
#include <vector>

namespace troupe::train::testing {
namespace {

using namespace collectives;

class HostWork final : public Work {
 public:
  explicit HostWork(std::shared_ptr<Work> work) : work_(std::move(work)) {}

 private:
  bool advance(Duration limit) override {
    if (limit != Duration::zero()) return work_->wait_for(limit);
    if (!work_->is_completed()) return false;
    if (const auto thrown = work_->exception()) std::rethrow_exception(thrown);
    return true;
  }
  const std::shared_ptr<Work> work_;
};

class OnHost final : public ProcessGroup {
 public:
  explicit OnHost(std::shared_ptr<ProcessGroup> gpus)
      : ProcessGroup(facts_of(*gpus)), gpus_(std::move(gpus)) {}
  ProcessGroup& host_group() override { return gpus_->host_group(); }
  std::string abort_reason() const override { return gpus_->abort_reason(); }
  void await_quiet() override { gpus_->await_quiet(); }
  ProcessGroup& gpus() const { return *gpus_; }

 private:
  static GroupFacts facts_of(const ProcessGroup& gpus) {
    GroupFacts facts = gpus.facts();
    facts.device = {};
    return facts;
  }
  std::shared_ptr<Work> launch(std::span<const Op> operations) override {
    std::vector<Op> there(operations.begin(), operations.end());
    for (Op& op : there) op.input.device = op.output.device = gpus_->facts().device;
    return std::make_shared<HostWork>(gpus_->batch(there));
  }
  void stop(const std::string& reason) override { gpus_->abort(reason); }
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool) override {
    return {static_cast<std::byte*>(gpus_->allocate(count, dtype).data)};
  }

  const std::shared_ptr<ProcessGroup> gpus_;
};

}  // namespace

std::shared_ptr<ProcessGroup> on_host(std::shared_ptr<ProcessGroup> gpus) {
  return std::make_shared<OnHost>(std::move(gpus));
}

ProcessGroup& gpus_of(ProcessGroup& group) {
  return dynamic_cast<OnHost&>(group).gpus();
}

}  // namespace troupe::train::testing
