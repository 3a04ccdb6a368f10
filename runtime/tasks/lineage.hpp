/// What a process's tasks have computed, and how it is computed again when it is lost: a pure machine. What
/// happens comes in by a method, what is to be done about it goes out as actions.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::tasks {

/// What is known of a value that is lost and wanted.
struct LostValue {
  bool has_recipe = true;  ///< function and arguments are kept
  int retries = 0;         ///< that are left
  int max_retries = 0;
};
/// Whether it is computed again, and why or why not.
struct Recompute {
  bool again = false;
  std::string reason;
};
Recompute recompute(const LostValue& lost);

/// Not thread-safe.
///
/// An entry is a task with its result. It is kept while somebody refers to the result, or a later result is
/// computed from it: recipes are kept, not values. Values are held while a task that reads them is to run.
/// What is lost is computed again once somebody wants it: first those of its arguments that are not there.
///
///     waiting --all arguments are made: Submit--> running --made--> made --lost, dropped--> lost
///       ^  ^-------------argument_lost--------------'                                        |
///       '-----------------------------want, while it has retries-----------------------------'
///
/// What throws, or is wanted and not computed again, is failed; so is then what waits for it.
///
/// Of a task with several results each is an entry, too, a part. When the task runs again for the sake of
/// one, the others that are lost have their values again, too.
class Lineage {
 public:
  using Number = std::uint64_t;
  /// Its arguments are there: run it.
  struct Submit {
    Number number = 0;
  };
  /// Keep its value, until Release, also where there is none yet (any more).
  struct Hold {
    Number number = 0;
  };
  struct Release {
    Number number = 0;
  };
  /// It has no value, and gets none.
  struct Fail {
    Number number = 0;
    ErrorInfo error;
  };
  /// Drop its function and arguments.
  struct Forget {
    Number number = 0;
  };
  /// It is to run, and somebody waits for its value: before others.
  struct Hasten {
    Number number = 0;
  };
  using Action = std::variant<Submit, Hold, Release, Fail, Forget, Hasten>;
  using Actions = std::vector<Action>;

  /// Of recipes: then the oldest half of them go, whose values are not computed again.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  explicit Lineage(std::uint64_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  struct Task {
    std::string name;               ///< of its function
    std::vector<Number> arguments;  ///< those that are entries
    std::uint64_t bytes = 0;        ///< of its recipe
    int max_retries = 0;            ///< how often it is computed again
    bool has_result = true;         ///< false: nobody can want it again
    /// One of several results of a task, which is its only argument: it is taken of the task's own result.
    bool is_part = false;
    /// Whose references it gets within its arguments, and may wait for when it runs. Entries, or gone.
    std::vector<Number> mentions{};
  };
  /// A new task. REQUIRES: the number is new; its arguments are entries, each named once.
  void add(Number number, Task task, Actions& out);
  void made(Number number, Actions& out);
  /// Its function threw, it found no worker, or it was cancelled before it ran.
  void failed(Number number, const ErrorInfo& error, Actions& out);
  /// An argument could not be read where it was to run. `is_computed_again`: and will be.
  void argument_lost(Number number, const ErrorInfo& why, bool is_computed_again, Actions& out);
  /// The value is gone with who held it.
  void lost(Number number, const std::string& why, Actions& out);
  /// Nobody refers to the value any more: it is gone, too.
  void dropped(Number number, Actions& out);
  /// Somebody waits for the value.
  void want(Number number, Actions& out);
  /// Somebody waits for the value that it is to have, or for one that is computed from that.
  bool is_wanted(Number number) const;

  /// Its worker was lost, and it runs again: that is of the same retries as what is computed again.
  void retried(Number number);
  /// That are left. REQUIRES: contains(number).
  int retries(Number number) const { return entries_.at(number).retries; }

  bool contains(Number number) const { return entries_.contains(number); }
  std::size_t size() const { return entries_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  /// Tasks whose arguments are not there yet, and the bytes of their recipes.
  std::size_t waiting() const { return waiting_; }
  std::uint64_t waiting_bytes() const { return waiting_bytes_; }

 private:
  enum class State { kWaiting, kRunning, kMade, kLost, kFailed };
  struct Entry {
    Task task;
    State state = State::kLost;
    int retries = 0;
    bool has_recipe = true;
    bool is_referred_to = true;
    bool is_wanted = false;      ///< Invariant: while it waits, what it reads is so, too, or made
    bool is_lost_early = false;  ///< before it was said that it is made
    std::size_t needed = 0;      ///< users that wait or run
    std::set<Number> users;      ///< those that have a recipe, and this for an argument
    std::string why_lost;
    ErrorInfo error;
  };
  using Entries = std::map<Number, Entry>;

  void set_state(Entry& entry, State state);
  void begin(Number number, Entry& entry, Actions& out);
  void end(const Entry& entry, Actions& out);
  void want(Number number, Entry& entry, Actions& out);
  void hasten(Number number, Actions& out);
  void fail(Number number, Entry& entry, const ErrorInfo& error, Actions& out);
  void go_on(Number number, Actions& out);
  /// Those that wait look at their arguments again. In a loop: a long chain takes no stack.
  void settle(Actions& out);
  static ErrorInfo not_again(const Entry& entry, const std::string& reason, const std::string& todo);
  void drop_recipe(Number number, Entry& entry, Actions& out);
  void forget_unused(Number number, Actions& out);
  void evict(Actions& out);

  const std::uint64_t most_bytes_;
  std::uint64_t bytes_ = 0;  ///< Invariant: of the recipes that are kept
  std::size_t waiting_ = 0;  ///< Invariant: entries of that state; so are their bytes
  std::uint64_t waiting_bytes_ = 0;
  Entries entries_;
  std::vector<Number> to_go_on_;  ///< the last one first; empty between calls
};

}  // namespace troupe::tasks
