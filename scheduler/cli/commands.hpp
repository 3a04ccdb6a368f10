/// The commands of `troupe`. Each returns the exit code, or throws troupe::Error with the one line a person
/// reads.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "scheduler/cli/resource_words.hpp"

namespace troupe::cli {

/// How long a head, a node or a program may take to answer.
inline constexpr Duration kAnswers = std::chrono::seconds(10);

/// Prints what CLI11 found in the words: help (0) or what is wrong with them (2).
int say_usage(const CLI::App& app, const CLI::ParseError& error);

/// Of an option with a whole number: CLI11 says of one that is out of its type's range that it cannot convert
/// it.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);

/// Of an option with a number that may have a fraction. (CLI::Range lets NaN through: it compares with
/// nothing.)
CLI::Validator number_of(const std::string& what, int most);
/// The same, where 0 is none.
CLI::Validator number_above_0(const std::string& what, int most);

/// The usage line of its --help ends with that.
void end_usage_with(CLI::App& app, const std::string& words);
/// Of an option that names a head: HOST:PORT.
CLI::Validator host_and_port();
/// Refuses "": left out, and not empty, it is the default (a variable of a script that is not set).
CLI::Validator not_empty(const std::string& todo = "leave it out for the default");
/// --folder and --address: of the keys, and of the head.
void add_head_options(CLI::App& command, std::string& folder, std::string& address);
/// -o: "table" or "json".
void add_output_option(CLI::App& command, std::string& output);

/// Of --since: "90s", "10m", "2h", "3d", or a time of this machine's clock.
inline constexpr const char* kSinceHelp =
    "What was written since then alone: 90s, 10m, 2h or 3d ago, 13:00 today, or 2026-01-31 13:00";
CLI::Validator since_time();
/// When a line of a node's log was written, which begins with "2026-01-31 13:00:05.250+0100": milliseconds
/// since 1970. Without a zone it is this machine's clock; nothing where there is no time.
std::optional<std::int64_t> time_of_line(const std::string& line);
/// Milliseconds since 1970; 0 for no text.
std::int64_t read_since(const std::string& text);
/// The same, as of `now_ms`; nothing where it is no time.
std::optional<std::int64_t> parse_since(const std::string& text, std::int64_t now_ms);

struct StartOptions {
  bool head = false;
  std::uint16_t port = 6380;
  std::string bind = "127.0.0.1";  ///< numeric address of this machine
  std::string address;             ///< of the head to join: HOST:PORT
  std::string token_file;          ///< "-" is standard input
  std::string listen;              ///< numeric address for other nodes; empty: the one that faces the head
  std::string name;                ///< of the node, for people; empty: the host's
  double cpus = -1;                ///< below 0: the cores this process may use
  int gpus = -1;                   ///< below 0: all that CUDA finds
  ResourceWords other;
  std::int64_t grace_s = 30;  ///< that a node drains at SIGTERM; 0: it ends at once
  std::string folder;         ///< empty: ClusterFolder::default_path()
  bool detach = false;
};
/// Runs a head and a node, or a node, until told to stop.
int start(StartOptions options);

struct StatusOptions {
  std::string folder;
  std::string address;  ///< empty: the one the folder remembers
  bool json = false;    ///< or output == "json"
  bool all = false;     ///< programs that have ended, too
  std::string output = "table";
};
int status(const StatusOptions& options);

struct GroupOptions {
  std::string folder;
  std::string address;  ///< empty: the one the folder remembers
  std::string output = "table";
};
/// Placement groups: where their bundles are, or what they wait for.
int list_groups(const GroupOptions& options);

/// troupe node: list, show.
int node(int argc, char** argv);
/// troupe actor: list, show, kill.
int actor(int argc, char** argv);
/// troupe logs: of a job, an actor or a node.
int logs(int argc, char** argv);

struct DrainOptions {
  std::string node;  ///< its name or id
  std::int64_t grace_s = 30;
  bool cancel = false;
  bool no_wait = false;
  std::string folder;
  std::string address;  ///< empty: the one the folder remembers
};
/// Has a node leave when nothing runs there, and waits for that: 0 it has left, 1 it was cancelled.
int drain(const DrainOptions& options);

struct TokenOptions {
  std::string folder;
  std::string output;  ///< made with mode 0600; empty: standard output
  std::uint32_t lifetime_s = 3600;
};
int token(const TokenOptions& options);

struct KeyOptions {
  std::string folder;
  std::string remove;  ///< the name of a machine; empty: list them
  bool json = false;   ///< or output == "json"
  std::string output = "table";
};
/// Machines that may come in without a token, and their nodes: lists them, or shuts one out.
int key(const KeyOptions& options);

/// Ends everything that runs from the folder.
int stop(const std::string& folder);

struct FlightRecorderOptions {
  std::vector<std::string> paths;  ///< dumps or folders; empty: where this user's processes leave them
  std::string folder;              ///< of a cluster: its dumps; empty: as above
  std::size_t last = 6;            ///< rows of the table
  bool all = false;                ///< every group and generation in full, not the newest alone
  bool json = false;
  std::string trace;  ///< where their operations go as a trace, in place of the report; empty: nowhere
};
/// Says which ranks of a process group diverged, and where: 0 none, 1 some, 2 the dumps cannot be read.
int flight_recorder(const FlightRecorderOptions& options);

}  // namespace troupe::cli
