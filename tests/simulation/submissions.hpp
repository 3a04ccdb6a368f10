/// Tasks beside the job: actors submit functions whose arguments and results are objects, and cancel some,
/// while workers crash. A task that may run once does; each ends once; no worker and no lease is left.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/client/session.hpp"
#include "tests/simulation/values.hpp"

namespace troupe::sim {

/// A fault has consequences for so long: what is stopped goes on, nodes are declared dead.
inline constexpr Duration kFaultLasts = seconds(60);

/// What is true of the tasks, whoever knows it.
class Submissions {
 public:
  explicit Submissions(Cluster& cluster) : cluster_(cluster) {}
  /// What `by` submits next: its number. `retries`: it may run so often after it was lost. `is_plain`: its
  /// answer refers to no object, so that nobody else can lose it.
  std::uint64_t add(const Hosted& by, int retries, bool is_plain = false);
  /// Its function begins in that worker, or in the process that submitted it.
  void begins(std::uint64_t task, const Hosted& in);
  void cancelled(std::uint64_t task) { all_.at(task).is_cancelled = true, ++cancels; }
  void answered() { ++answers; }
  /// Who submitted it never stops submitting tasks that want CPUs: it waits for one, until it begins or
  /// fails.
  void wants(std::uint64_t task);
  void waits_no_longer(std::uint64_t task);
  void failed(const ErrorInfo& error, std::uint64_t task, const ObjectRef<Words>& value, const Hosted& by);
  /// Every now and then: no worker lives so long after who leased it, and the last fault.
  void look(Duration bound);
  /// The same of what never stops submitting: some task of each has begun lately.
  void look_for_starved(Duration bound) const;

  /// What tasks compute.
  Words words_of(std::uint64_t number, std::size_t words) const;

  long answers = 0;
  long begun_again = 0;
  long cancels = 0;
  long crashes = 0;
  long waits = 0;                     ///< in which a worker left its CPUs to others
  long turns = 0;                     ///< workers that were to be given back for others
  std::optional<Instant> crashed_at;  ///< the last one

 private:
  struct Task {
    const Hosted* by = nullptr;
    int retries = 0;
    bool is_plain = false;
    bool is_cancelled = false;
    const Hosted* last_in = nullptr;  ///< where it began last
  };
  struct Served {
    const Hosted* owner = nullptr;
    Instant gone_at{};  ///< first seen so
  };
  struct Greedy {
    std::set<std::uint64_t> wait{};
    Instant since{};  ///< none has begun
  };
  Cluster& cluster_;
  std::map<const Hosted*, Greedy> greedy_;
  std::map<std::uint64_t, Task> all_;
  std::map<const Hosted*, Served> workers_;
  std::uint64_t numbers_ = 0;
};

/// The sum of the words.
std::uint64_t sum_task(std::uint64_t task, const View<std::uint64_t>& words);
/// So many words, of a number.
Words make_task(std::uint64_t task, std::uint64_t number, std::uint64_t words);
/// A copy of them: of what another task has computed, too.
Words copy_task(std::uint64_t task, const View<std::uint64_t>& words);
/// What two others that it submits answer, both.
std::uint64_t tree_task(std::uint64_t task, const ObjectRef<Words>& words);
/// The sum of what it waits for, which another task may still have to compute.
std::uint64_t read_task(std::uint64_t task, const ObjectRef<Words>& words);
/// Its number, after a while.
std::uint64_t busy_task(std::uint64_t task);
/// What it has put: some words of a number.
ObjectRef<Words> put_task(std::uint64_t task, std::uint64_t number, std::uint64_t words);

}  // namespace troupe::sim
