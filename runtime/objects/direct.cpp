// Copies that come straight from their owner's memory, and objects that go so: over connections of their own,
// which prove both ends and encrypt nothing. Where there is no such connection they come over the links.
#include "runtime/core/log.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {

Objects::Objects(ProcessGate& gate, Waiter* waiter, AskRegion ask_region,
                 std::unique_ptr<DirectConnections> direct, std::shared_ptr<SpillDisk> spill_disk,
                 const ObjectLimits& limits)
    : gate_(gate),
      waiter_(waiter),
      ask_region_(std::move(ask_region)),
      limits_(limits),
      owned_(gate.address().node),
      direct_(std::move(direct)),
      files_(std::move(spill_disk)) {}

// The owner's side.

void Objects::end_direct() {
  std::unique_ptr<DirectConnections> direct;  // its threads end without the lock
  const std::lock_guard lock(mutex_);
  direct.swap(direct_);
}

/// Empty: this process gives nothing so.
DirectAddress Objects::direct_address() {
  const std::lock_guard lock(mutex_);
  if (direct_ == nullptr || closed_) return {};
  return direct_->address(gate_.config().host, [weak = weak_from_this()](std::uint64_t number) {
    const auto self = weak.lock();
    return self == nullptr ? nullptr : self->in_memory(number);
  });
}

Objects::BytesPtr Objects::in_memory(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto at = values_.find(number);
  if (at == values_.end() || closed_) return nullptr;
  const FetchPtr& value = at->second.value;
  return value->done.ready() && value->done.outcome().ok() ? value->bytes : nullptr;
}

// The reader's side.

DirectOwners::Choice Objects::choose_way(const ObjectName& name, std::uint64_t bytes) const {
  if (name.owner.node == gate_.address().node)
    return {DirectOwners::Way::kLinks, {}, "its owner is on this node"};
  const std::lock_guard lock(mutex_);
  if (direct_ == nullptr) return {DirectOwners::Way::kLinks, {}, "this process has no direct connections"};
  return direct_owners_.choose(name.owner, bytes, MonotonicClock().now());
}

void Objects::act(const PullPtr& pull, const CopyPlan::AskAddress& /*of its owner*/) {
  const ProcessAddress owner = pull->name.owner;
  const auto said = ask(owner, kDirectAddress, {});
  said->on_ready([weak = weak_from_this(), said, pull, owner] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    std::optional<DirectAddress> at;
    if (said->outcome().ok()) {
      if (auto address = wire::decode<DirectAddress>(*said->outcome())) at = *std::move(address);
    }
    {
      const std::lock_guard lock(self->mutex_);
      self->direct_owners_.said(owner, std::move(at), MonotonicClock().now());
    }
    auto choice = self->choose_way(pull->name, pull->bytes);
    self->pull(pull, [&choice](CopyPlan& plan, auto& out) { plan.addressed(std::move(choice), out); });
  });
}

void Objects::act(const PullPtr& pull, const CopyPlan::FetchDirect& from) {
  bool is_over = false;
  {
    const std::lock_guard lock(mutex_);
    is_over = closed_ || direct_ == nullptr;
    if (!is_over) {
      const bool begins = direct_->fetch({pull->name, pull->bytes, from.at, pull->fd.get()},
                                         [weak = weak_from_this(), pull](const Result<void>& result) {
                                           if (const auto self = weak.lock())
                                             self->pulled_direct(pull, result);
                                         });
      if (begins) return;
    }
  }
  if (is_over) return done(pull->name, pull->fetch, process_ends());
  this->pull(pull, [](CopyPlan& plan, auto& out) {
    plan.direct_ended(ErrorInfo{ErrorCode::kUnavailable, "no direct connection", "it does not begin", ""},
                      out);
  });
}

void Objects::pulled_direct(const PullPtr& pull, const Result<void>& result) {
  bool is_over = false;
  {
    const std::lock_guard lock(mutex_);
    is_over = closed_;
    if (result) ++direct_copies_;
    direct_owners_.ended(pull->name.owner, result, MonotonicClock().now());
  }
  // close() told those alone that wait for what is still known here: its owner may have freed it meanwhile.
  if (is_over) return done(pull->name, pull->fetch, process_ends());
  if (!result) {
    log(LogLevel::kInfo, "an object of process " + to_string(pull->name.owner.process) +
                             " comes over the links, slowly: " + result.error().message());
  }
  this->pull(pull, [&result](CopyPlan& plan, auto& out) { plan.direct_ended(result, out); });
}

}  // namespace troupe::objects
