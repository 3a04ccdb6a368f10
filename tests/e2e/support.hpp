/// What the end-to-end tests share: load on the machine, programs run as children, and a tally that
/// lets no call get lost.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"
#include "tests/support/shell.hpp"

namespace troupe::e2e {

using test::eventually, test::read_file, test::TempFolder, test::Ran, test::shell;

/// Processes that do nothing but take the CPU, while this object lives.
class BusyLoops {
 public:
  explicit BusyLoops(int count);
  ~BusyLoops();
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;

 private:
  std::vector<pid_t> pids_;
};

/// A hidden test case of this executable (a name without commas), run as a program of its own. Everything it
/// starts inherits a mark by which it is found, however it is orphaned. The destructor kills all of it.
class Program {
 public:
  /// `folder` is where it finds what the test gives it, and leaves what the test reads: program_folder(). Its
  /// output goes to the files `out` and `err` there.
  Program(const std::string& test_case, const std::string& folder);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// "exit code 0", "killed by signal 11", or "it did not end" after `timeout`.
  std::string wait(Duration timeout);
  void kill(int signal);
  pid_t pid() const { return pid_; }
  /// It and what it started, as far as they live.
  std::vector<pid_t> processes() const;

 private:
  std::string mark_;
  pid_t pid_ = -1;
  bool reaped_ = false;
};
/// In a program: the folder that its test gave it.
std::string program_folder();

/// Writes the file in one piece: whoever sees it sees all of it.
void write_file(const std::string& path, const std::string& text);
/// Living children of `parent`: of that name, or all but the fork server.
std::vector<pid_t> children(pid_t parent, const std::string& name = {});
bool is_alive(pid_t pid);
/// Stops the process (SIGSTOP), and waits until all of its threads stand: the signal is one thread's, and
/// until that has run, which takes long on a busy machine, the others go on.
bool stand_still(pid_t pid);
std::set<std::string> names_in(const std::string& folder);
/// Shuts down the TCP connections that these processes have with each other, and says how many ends that
/// were. They may make others.
std::size_t cut_connections(const std::vector<pid_t>& processes);
std::size_t count(const std::string& text, const std::string& part);
std::vector<std::string> sorted_lines(const std::string& text);

/// `size` bytes that only `index` has.
std::string pattern(std::uint64_t index, std::size_t size);

/// What became of calls. A call ends in one of four ways, and two of them are defects.
struct Tally {
  std::size_t right = 0;
  std::size_t wrong = 0;                      ///< answered with something else than its answer
  std::size_t unanswered = 0;                 ///< not within the deadline
  std::map<std::string, std::size_t> failed;  ///< by the error's code
  std::string first_error;
  std::string first_wrong;

  std::size_t all() const;
  std::size_t failures() const;
  void error(const ErrorInfo& info);
  std::string to_string() const;

  /// Waits for one answer until `deadline` and counts it. `is_right` looks at the value.
  template <class Future, class IsRight>
  void take(const Future& future, Instant deadline, IsRight&& is_right) {
    try {
      const Duration left = deadline - MonotonicClock().now();
      if (is_right(future.get(left > Duration(0) ? left : Duration(0)))) {
        ++right;
      } else {
        ++wrong;
      }
    } catch (const Timeout&) {
      ++unanswered;
    } catch (const Error& e) {
      error(e.info());
    }
  }
};

/// The text of the `E` that `f` throws, or what it does instead.
template <class E = Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("it threw something else: ") + error.what();
  }
  return "it did not throw";
}

/// The code of the Error that `f` throws, as printed; "nothing" if it throws none.
template <class F>
std::string code_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return std::string(error_code_name(error.code()));
  }
  return "nothing";
}

}  // namespace troupe::e2e
