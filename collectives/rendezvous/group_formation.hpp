/// A rank's part in the formation of a group at the store (formations.hpp), and the keys that its ranks have
/// meanwhile.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/rendezvous/store/store_client.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::collectives {

/// As a Store, the keys of this formation: its waits end once the formation has failed, and nothing is left
/// of them when it is over. Used by one thread, as a Store by any.
class GroupFormation final : public Store {
 public:
  struct Entered {
    Generation generation;                            ///< the same on every rank, and no other group's
    std::vector<std::pair<int, std::string>> values;  ///< with which the members entered, by rank
  };

  /// `key`: of the formation, used once. `purpose`: what errors begin with.
  GroupFormation(std::shared_ptr<StoreClient> client, std::string key, std::string purpose);

  /// Says what this rank enters with, and waits for nobody: for give_up(), where it cannot go on.
  void begin(const Entry& mine, Duration limit);
  /// The same, and waits for all members of the list. Throws BadConfig where another rank has another list,
  /// and as ready().
  Entered enter(const Entry& mine, Duration limit);
  /// This rank has its part; waits for the others. Throws CollectiveAborted where a rank is gone, Timeout,
  /// Unavailable where a rank could not or the store is gone.
  void ready(Duration limit);
  /// This rank could not, as `error` says. Throws what counts for all: the first failure, or `error` if it is
  /// that.
  [[noreturn]] void give_up(const std::string& why, std::exception_ptr error);

  /// Whether it has failed meanwhile, between enter() and ready(). From any thread.
  bool failed() const { return entered_ != nullptr && entered_->has_news(); }
  /// Readable once failed().
  int failed_fd() { return entered_->news_fd(); }

  void set(const std::string& key, std::string_view value) override;
  std::optional<std::string> find(const std::string& key, Duration wait) override;
  std::int64_t erase(const std::string& prefix) override;

 private:
  [[noreturn]] void throw_failure(const StoreResponse& failure) const;

  const std::shared_ptr<StoreClient> client_;
  const std::string key_;
  const std::string purpose_;
  bool survivors_ = false;
  std::unique_ptr<StoreClient::Call> entered_;  ///< a second answer to it: the formation failed
};

}  // namespace troupe::collectives
