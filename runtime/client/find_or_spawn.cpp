#include "runtime/client/find_or_spawn.hpp"

#include <algorithm>
#include <mutex>

#include "runtime/wire/cluster.hpp"

namespace troupe::detail {
namespace {

/// Its holder is being started, or waits: looked up again after so long, and then after twice that.
constexpr Duration kAgain = std::chrono::milliseconds(50), kMostAgain = std::chrono::seconds(1);

class FindOrSpawn : public std::enable_shared_from_this<FindOrSpawn> {
 public:
  FindOrSpawn(ProcessGate& gate, ActorSpawn spawn) : gate_(gate), spawn_(std::move(spawn)) {}

  std::shared_ptr<CallState> start() {
    result_->set_on_cancel([weak = weak_from_this()](Duration) {
      if (const auto self = weak.lock()) self->cancel();
    });
    find();
    return result_;
  }

 private:
  void find() {
    if (result_->ready()) return;
    const auto found = gate_.find(spawn_.name);
    found->on_ready([self = shared_from_this(), found] { self->found(found->outcome()); });
  }
  void found(const Outcome& outcome) {
    const bool nobody = !outcome.ok() && outcome.error().code == ErrorCode::kUnavailable;
    if (nobody && !result_->ready()) return spawn();
    result_->resolve(outcome);
  }
  void spawn() {
    const auto asked = gate_.spawn(spawn_);
    {
      const std::lock_guard lock(mutex_);
      asked_ = asked;
    }
    asked->on_ready([self = shared_from_this(), asked] { self->spawned(asked->outcome()); });
    if (result_->ready() && !result_->outcome().ok()) cancel();
  }
  void spawned(const Outcome& outcome) {
    const bool is_taken = !outcome.ok() && outcome.error().code == ErrorCode::kRefused &&
                          outcome.error().why.ends_with(cluster::kNameIsTaken);
    if (is_taken) {
      gate_.later(again_, [self = shared_from_this()] { self->find(); });
      again_ = std::min(2 * again_, kMostAgain);
      return;
    }
    // Cancelled meanwhile: nobody wants what has started.
    if (result_->resolve(outcome) || !outcome.ok()) return;
    if (const auto at = wire::decode<ActorAddress>(*outcome)) gate_.kill(*at, "it is not needed");
  }
  void cancel() {
    std::shared_ptr<CallState> asked;
    {
      const std::lock_guard lock(mutex_);
      asked = std::exchange(asked_, nullptr);
    }
    if (asked != nullptr) asked->cancel(result_->outcome().error());
  }

  ProcessGate& gate_;
  const ActorSpawn spawn_;
  const std::shared_ptr<CallState> result_ = std::make_shared<CallState>(nullptr);
  Duration again_ = kAgain;  ///< of one callback after the other
  std::mutex mutex_;
  std::shared_ptr<CallState> asked_;  ///< under mutex_: the spawn under way
};

}  // namespace

std::shared_ptr<CallState> find_or_spawn(ProcessGate& gate, ActorSpawn spawn) {
  return std::make_shared<FindOrSpawn>(gate, std::move(spawn))->start();
}

}  // namespace troupe::detail
