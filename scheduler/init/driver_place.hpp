/// A driver's place in its cluster: kept for as long as the cluster can give it one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/host/process.hpp"

namespace troupe {

/// The driver's process as its node knows it. When that node dies, everything that went through it fails with a type;
/// then the driver takes the place that it is given next, registers its job again (as a newer driver of it, so what
/// the job had on other nodes ends), and its Sessions lead there. Handles of before stay dead.
///
/// Thread-safe.
class DriverPlace {
 public:
  /// Waits for a link to a node that takes the driver. Nothing: there will be none.
  using NextLink = std::function<std::optional<SocketLink>()>;

  /// Takes the first place. Throws with the reason when there is none.
  DriverPlace(std::string job, NextLink next_link);
  /// Joins the thread that waits for links: REQUIRES that next_link returns by now.
  ~DriverPlace();
  DriverPlace(const DriverPlace&) = delete;
  DriverPlace& operator=(const DriverPlace&) = delete;

  /// The first one; Sessions of it find their way to the present one.
  Process& process() { return *lives_.front(); }
  /// Says goodbye: the node ends with all it started. No place is taken after that.
  void leave(Duration timeout);

 private:
  void keep();
  bool take_next();
  void take(SocketLink link);
  void lost();

  const std::string job_;
  const NextLink next_link_;
  std::mutex mutex_;  ///< guards lives_
  /// All of them, the present one last: handles of the former ones are still out there.
  std::vector<std::unique_ptr<Process>> lives_;
  std::atomic<bool> leaving_{false};
  std::atomic<std::uint32_t> lost_{0};  ///< places that were lost
  std::thread keeper_;
};

}  // namespace troupe
