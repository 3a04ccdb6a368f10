/// `troupe run`: its flags, and what they make of a run.
#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace troupe::cli {

/// Adds the command to the words of `troupe`; after parsing, run() does it.
class RunCommand {
 public:
  explicit RunCommand(CLI::App& app);
  ~RunCommand();
  RunCommand(const RunCommand&) = delete;
  RunCommand& operator=(const RunCommand&) = delete;

  /// Takes the -- in `troupe run [flags] -- PROGRAM args` out: the program is the first word that is no flag
  /// anyway.
  static void drop_separator(int& argc, char** argv);
  bool parsed() const;
  /// Returns the exit code: 2 for flags that make no sense, after saying so.
  int run();

 private:
  struct Flags;
  CLI::App* app_;
  std::unique_ptr<Flags> flags_;
};

}  // namespace troupe::cli
