// troupe run: programs as the ranks of a process group, with torchrun's flags.
#include "scheduler/cli/run.hpp"

#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "collectives/rendezvous/connect/address.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/random.hpp"
#include "runtime/node/gpus.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/init/join_cluster.hpp"
#include "scheduler/launch/cluster_run.hpp"
#include "scheduler/launch/rank_environment.hpp"
#include "scheduler/launch/run_driver.hpp"

namespace troupe::cli {
namespace {

using launch::MasterChoice;
using launch::RunConfig;
using launch::RunSpec;

constexpr const char* kRunAbout = "Run a program as the ranks of a process group, with torchrun's flags";
constexpr const char* kRunFooter =
    "  troupe run [OPTIONS] PROGRAM [ARGUMENTS...]\n"
    "The options are torchrun's, with dashes or underscores, or as variables PET_NAME. A .py file runs "
    "under\n"
    "python3 -u, anything else itself.\n"
    "Examples:\n"
    "  troupe run --nproc-per-node 2 train.py --epochs 3        two ranks on this machine\n"
    "  troupe run --nproc-per-node 2 --max-restarts 3 ./ddp     all ranks start again when one fails\n"
    "  troupe run --nproc-per-node 2 -t 3 --log-dir logs ./ddp  output to files, and here with a prefix\n"
    "  troupe run --nnodes 2 --node-rank 0 --master-addr ONE --master-port 29500 train.py\n"
    "                                                           on each of two machines, with its rank\n"
    "  troupe run --address ONE:6380 --nnodes 1:2 --nproc-per-node 2 train.py\n"
    "                                                           on one or two nodes of a cluster\n"
    "Ends with 0 when all ranks did, 1 when one failed (--exit-code first: with the code of the first), 2 "
    "for\n"
    "flags that make no sense. docs/launch.md has a row for each flag of torchrun.\n";
constexpr std::uint32_t kMostProcesses = 4096;
constexpr std::int64_t kMostRestarts = 1'000'000'000;
constexpr const char* kOrWords = ", auto, cpu or gpu";

[[noreturn]] void refuse(std::string what, std::string why, std::string todo) {
  throw BadConfig("cannot run: " + std::move(what), std::move(why), std::move(todo));
}

/// torchrun's flags that are not there, and what to do instead.
struct Absent {
  const char* name;
  const char* todo;
};
constexpr Absent kAbsent[] = {
    {"--run-path", "name the file: it runs under python3 -u"},
    {"--event-log-handler", "leave it out"},
    {"--logs-specs", "use --log-dir, -r and -t"},
    {"--log-line-prefix-template", "leave it out: lines of -t start with [ROLE LOCAL_RANK]:"},
    {"--numa-binding", "start the program under numactl"},
    {"--signals-to-handle", "leave it out: SIGTERM, SIGINT, SIGHUP and SIGQUIT are handled"},
    {"--virtual-local-rank", "leave it out"},
    {"--local-addr", "leave it out: an address is chosen by the one of the master"},
    {"--start-method", "leave it out: programs are executed"},
};

std::string with_dashes(std::string word) {
  word = word.substr(0, word.find('='));
  for (std::size_t i = 2; i < word.size(); ++i) {
    if (word[i] == '_') word[i] = '-';
  }
  return word;
}

[[noreturn]] void refuse_flag(const std::string& word) {
  const std::string name = with_dashes(word);
  for (const Absent& absent : kAbsent) {
    if (name == absent.name) refuse("'" + word + "'", "troupe has no such flag yet", absent.todo);
  }
  refuse("'" + word + "'", "there is no such flag",
         "see troupe run --help; flags of the program go after its name");
}

std::uint32_t read_number(std::string_view text, const std::string& flag, std::uint32_t least,
                          std::uint32_t most, const std::string& or_words = "") {
  std::uint32_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || number < least || number > most) {
    refuse(flag + " " + std::string(text),
           "it is not " + std::to_string(least) + " to " + std::to_string(most) + or_words,
           "give one of these");
  }
  return number;
}

std::uint32_t cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<std::uint32_t>(CPU_COUNT(&set));
  return 1;
}

std::uint32_t processes_of(const std::string& text) {
  if (text == "cpu") return cores();
  if (text == "auto" || text == "gpu") {
    const auto gpus = find_gpus();
    if (gpus && !gpus->empty()) return static_cast<std::uint32_t>(gpus->size());
    if (text == "auto") return cores();
    refuse("--nproc-per-node gpu", gpus ? "this machine has no GPU that CUDA shows" : gpus.error().message(),
           "use auto, cpu or a number");
  }
  return read_number(text, "--nproc-per-node", 1, kMostProcesses, kOrWords);
}

}  // namespace

struct RunCommand::Flags {
  std::string nnodes = "1", nproc = "1", role = "default", redirects = "0", tee = "0", ranks_filter, log_dir;
  std::string master_addr, exit_code = "one", address, token_file, folder;
  std::string rdzv_backend, rdzv_endpoint, rdzv_id, rdzv_conf;
  std::uint32_t node_rank = 0, max_restarts = 0, log_limit = 64;
  std::uint16_t master_port = 0;
  double monitor_interval = 0, shutdown_timeout = 30;
  bool standalone = false, module = false, no_python = false, use_env = false;
  CLI::Option* node_rank_option = nullptr;
  CLI::Option* master_port_option = nullptr;

  void add_to(CLI::App& app);
  RunConfig config() const;
  RunSpec spec(const std::vector<std::string>& words) const;
  MasterChoice master(const RunConfig& config) const;
  launch::ClusterChoice cluster() const;
  void check_filter(const RunSpec& spec, std::uint32_t processes) const;
  bool is_static() const { return node_rank_option->count() > 0 || !master_addr.empty(); }
};

namespace {

/// "--nproc-per-node" and "--nproc_per_node", and PET_NPROC_PER_NODE.
struct Names {
  explicit Names(const std::string& dashed, const std::string& shorter = "")
      : words(shorter + "--" + dashed) {
    std::string under = dashed;
    for (char& c : under) c = c == '-' ? '_' : c;
    if (under != dashed) words += ",--" + under;
    variable = "PET_" + under;
    for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  std::string words, variable;
};

template <class T>
CLI::Option* add(CLI::App& app, const std::string& name, T& value, const std::string& help,
                 const std::string& shorter = "") {
  const Names names(name, shorter);
  return app.add_option(names.words, value, help)->envname(names.variable);
}
void add_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help,
              const std::string& shorter = "") {
  const Names names(name, shorter);
  app.add_flag(names.words, value, help)->envname(names.variable);
}

}  // namespace

void RunCommand::Flags::add_to(CLI::App& app) {
  const std::string world = "Which ranks", ends = "How it ends", output = "Output", program = "The program";
  const std::string needless = "Accepted for scripts that have it; needless";
  add(app, "nnodes", nnodes, "Nodes; MIN:MAX in a cluster [default: 1]")->group(world)->type_name("N");
  add(app, "nproc-per-node", nproc,
      "Ranks on a node: a number, auto (GPUs, else cores), cpu or gpu [default: 1]")
      ->group(world)
      ->type_name("N|auto|cpu|gpu");
  add_flag(app, "standalone", standalone, "One node: this machine. It is so without it, too");
  app.add_option("--address", address, "Run on the nodes of the cluster whose head is at HOST:PORT")
      ->group(world)
      ->type_name("HOST:PORT");
  app.add_option("--token-file", token_file,
                 "File with a join token, for a folder that the cluster does not know")
      ->group(world)
      ->envname("TROUPE_TOKEN_FILE");
  app.add_option("--folder", folder, "Where this user's keys are [default: as for troupe start]")
      ->group(world)
      ->check(not_empty());
  node_rank_option = add(app, "node-rank", node_rank, "Of this machine, where each starts its own ranks")
                         ->group(world)
                         ->check(whole_number(0, kMostProcesses - 1));
  add(app, "master-addr", master_addr, "Of node rank 0 [default: 127.0.0.1]")
      ->group(world)
      ->type_name("ADDRESS");
  master_port_option = add(app, "master-port", master_port,
                           "At which rank 0 listens [default: a free one each start; 29500 with "
                           "several nodes]")
                           ->group(world)
                           ->type_name("PORT")
                           ->check(whole_number(1, 65535));
  add(app, "role", role, "ROLE_NAME of the ranks [default: default]")->group(world)->type_name("NAME");
  add(app, "max-restarts", max_restarts, "How often all ranks start again after one failed [default: 0]")
      ->group(ends)
      ->type_name("N")
      ->check(whole_number(0, kMostRestarts));
  add(app, "shutdown-timeout", shutdown_timeout, "Seconds between SIGTERM and SIGKILL [default: 30]")
      ->group(ends)
      ->type_name("SECONDS")
      ->check([](const std::string& text) {  // CLI11's Range takes "nan"
        char* end = nullptr;
        const double seconds = std::strtod(text.c_str(), &end);
        return *end == 0 && seconds >= 0 && seconds <= 86400 ? ""
                                                             : "'" + text + "' is not 0 to 86400 seconds";
      });
  app.add_option("--exit-code", exit_code,
                 "When a rank fails end with 1 (one), or with its code (first) [default: one]")
      ->group(ends)
      ->check(CLI::IsMember({"one", "first"}));
  add(app, "log-dir", log_dir, "Folder for logs and error files [default: a temporary one]")
      ->group(output)
      ->type_name("DIR");
  add(app, "log-limit", log_limit, "MiB of each of these logs that are kept: the newest [default: 64]")
      ->group(output)
      ->type_name("MIB")
      ->check(whole_number(1, 1 << 20));
  add(app, "redirects", redirects,
      "Streams that go to files instead: 1 output, 2 errors, 3 both, or RANK:N,...", "-r,")
      ->group(output)
      ->type_name("STREAMS");
  add(app, "tee", tee, "Streams that go to files, and here with a prefix", "-t,")
      ->group(output)
      ->type_name("STREAMS");
  add(app, "local-ranks-filter", ranks_filter,
      "Local ranks whose output is shown here, as 0,2 [default: all]")
      ->group(output)
      ->type_name("RANKS");
  add_flag(app, "module", module, "The program is a Python module", "-m,");
  add_flag(app, "no-python", no_python, "Execute a .py file itself");
  add(app, "rdzv-backend", rdzv_backend, needless)->group(program);
  add(app, "rdzv-endpoint", rdzv_endpoint, needless)->group(program);
  add(app, "rdzv-conf", rdzv_conf, needless)->group(program);
  add(app, "rdzv-id", rdzv_id, "TORCHELASTIC_RUN_ID of the ranks [default: random]")->group(program);
  add(app, "monitor-interval", monitor_interval, needless + ": an end is seen at once")->group(program);
  add_flag(app, "use-env", use_env, needless + ": ranks have their environment always");
}

RunConfig RunCommand::Flags::config() const {
  RunConfig config;
  const auto colon = nnodes.find(':');
  config.min_nodes = read_number(std::string_view(nnodes).substr(0, colon), "--nnodes", 1, kMostProcesses);
  config.max_nodes = colon == std::string::npos ? config.min_nodes
                                                : read_number(std::string_view(nnodes).substr(colon + 1),
                                                              "--nnodes", 1, kMostProcesses);
  if (config.min_nodes > config.max_nodes) refuse("--nnodes " + nnodes, "MIN is above MAX", "write MIN:MAX");
  config.max_restarts = max_restarts;
  config.shutdown_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(shutdown_timeout));
  config.exit_code_first = exit_code == "first";
  return config;
}

RunSpec RunCommand::Flags::spec(const std::vector<std::string>& words) const {
  RunSpec spec;
  if (!words.empty() && words.front().size() > 1 && words.front().front() == '-') refuse_flag(words.front());
  auto command = launch::command_of({words, module, no_python});
  if (!command) refuse(command.error().what, command.error().why, command.error().todo);
  spec.command = *std::move(command);
  std::error_code error;
  spec.folder = std::filesystem::current_path(error).string();
  spec.role = role;
  spec.run_id = rdzv_id.empty() ? to_hex(SystemRandom().next()).substr(0, 8) : rdzv_id;
  if (spec.run_id.find('/') != std::string::npos)
    refuse("--rdzv-id " + spec.run_id, "a folder is named after it", "leave '/' out");
  spec.log_folder = log_dir;
  spec.log_limit_bytes = std::uint64_t{log_limit} << 20U;
  const auto streams = [](const char* flag, const std::string& text) {
    auto read = launch::parse_streams(text);
    if (!read) refuse(std::string(flag) + " " + text, read.error().what, read.error().todo);
    return *read;
  };
  spec.redirects = streams("--redirects", redirects);
  spec.tee = streams("--tee", tee);
  for (std::string_view rest = ranks_filter; !rest.empty();) {
    const auto comma = rest.find(',');
    spec.shown.push_back(
        static_cast<int>(read_number(rest.substr(0, comma), "--local-ranks-filter", 0, kMostProcesses - 1)));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return spec;
}

MasterChoice RunCommand::Flags::master(const RunConfig& config) const {
  MasterChoice master;
  if (!master_addr.empty()) {
    const auto found = collectives::resolve(master_addr, std::chrono::seconds(10));
    if (!found) refuse("--master-addr " + master_addr, found.error().why, found.error().todo);
    master.address = *found;
  }
  master.port = master_port;
  if (config.max_nodes == 1) {
    if (node_rank != 0)
      refuse("--node-rank " + std::to_string(node_rank), "there is one node", "give --nnodes N as well");
    return master;
  }
  const std::string nodes = "--nnodes " + nnodes;
  if (standalone) refuse("--standalone " + nodes, "standalone is one node", "give one of them");
  const std::string cluster = "start a cluster and give --address HOST:PORT (docs/cluster.md)";
  if (!is_static()) {
    refuse(nodes, "nobody says where they are",
           cluster + ", or on each machine --node-rank K --master-addr A --master-port P");
  }
  if (config.min_nodes != config.max_nodes)
    refuse(nodes, "without a cluster the number of nodes is fixed", cluster);
  if (master_addr.empty())
    refuse(nodes + " --node-rank", "nobody says where node rank 0 is", "give --master-addr A on each");
  if (config.max_restarts > 0) {
    refuse(nodes + " --max-restarts " + std::to_string(max_restarts),
           "the commands of several machines do not know of each other, so they cannot restart together",
           "leave --max-restarts out, or " + cluster);
  }
  if (node_rank >= config.max_nodes)
    refuse("--node-rank " + std::to_string(node_rank), "it is not below --nnodes", "count nodes from 0");
  master.nodes = config.max_nodes;
  master.node_rank = node_rank;
  if (master.port == 0) master.port = 29500;
  return master;
}

void RunCommand::Flags::check_filter(const RunSpec& spec, std::uint32_t processes) const {
  for (const int rank : spec.shown) {
    if (static_cast<std::uint32_t>(rank) < processes) continue;
    refuse("--local-ranks-filter " + ranks_filter,
           "local rank " + std::to_string(rank) + " is none of 0 to " + std::to_string(processes - 1),
           "name ranks below --nproc-per-node");
  }
}

launch::ClusterChoice RunCommand::Flags::cluster() const {
  if (is_static() || master_port_option->count() > 0 || standalone) {
    refuse("--address", "the cluster knows its nodes, and rank 0's chooses a port",
           "leave --standalone, --node-rank, --master-addr and --master-port out");
  }
  const auto endpoint = parse_endpoint(address);
  if (!endpoint) refuse("--address " + address, endpoint.error().message(), "give HOST:PORT of the head");
  launch::ClusterChoice choice{address, folder, token_file, {}};
  const bool is_number = nproc != "auto" && nproc != "cpu" && nproc != "gpu";
  const std::uint32_t number =
      is_number ? read_number(nproc, "--nproc-per-node", 1, kMostProcesses, kOrWords) : 0;
  choice.processes = [kind = nproc, number](std::uint32_t cpus, std::uint32_t gpus) {
    if (kind == "cpu" || (kind == "auto" && gpus == 0)) return cpus;
    if (kind == "gpu" || kind == "auto") return gpus;
    return number <= cpus ? number : 0;
  };
  return choice;
}

namespace {

void warn(const std::string& text) {
  std::fprintf(stderr, "troupe run: %s\n", escape_text(text).c_str());
}

int run_here(RunConfig config, const RunSpec& spec, const MasterChoice& master, std::uint32_t processes) {
  config.min_nodes = config.max_nodes = 1;
  launch::RunDriver driver(config);
  const auto on = [&driver](launch::RunEvent event) { driver.on(std::move(event)); };
  // Among several hosts the one towards rank 0; where its name is not known yet, Gloo and NCCL choose.
  const std::string address =
      master.nodes == 1 ? "127.0.0.1" : address_facing({master.address, master.port}).value_or("");
  auto group = launch::WorkerGroup::make(driver.loop(), spec, 0, launch::interface_of(address), on).value();
  const std::string logs = group->log_folder();
  driver.add(0, std::make_unique<launch::LocalNode>(0, master, std::move(group), on));
  if (!logs.empty()) warn("logs are in " + logs);
  driver.on(launch::NodeCame{0, "", processes});
  return driver.run();
}

}  // namespace

RunCommand::RunCommand(CLI::App& app)
    : app_(app.add_subcommand("run", kRunAbout)), flags_(std::make_unique<Flags>()) {
  app_->footer(kRunFooter);
  app_->prefix_command();
  flags_->add_to(*app_);
}

RunCommand::~RunCommand() = default;

void RunCommand::drop_separator(int& argc, char** argv) {
  constexpr std::string_view kWithoutValue[] = {"--standalone", "--module",    "-m",
                                                "--no-python",  "--no_python", "--use-env",
                                                "--use_env",    "--help",      "-h"};
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      std::copy(argv + i + 1, argv + argc, argv + i);
      --argc;
      return;
    }
    if (word.size() < 2 || word.front() != '-') return;  // the program
    const bool has_value =
        word.find('=') != word.npos || (word[1] != '-' && word.size() > 2) ||
        std::find(std::begin(kWithoutValue), std::end(kWithoutValue), word) != std::end(kWithoutValue);
    if (!has_value) ++i;
  }
}

bool RunCommand::parsed() const {
  return app_->parsed();
}

int RunCommand::run() {
  RunConfig config;
  RunSpec spec;
  MasterChoice master;
  launch::ClusterChoice cluster;
  std::uint32_t processes = 0;
  const bool has_cluster = !flags_->address.empty();
  try {
    spec = flags_->spec(app_->remaining());
    config = flags_->config();
    if (has_cluster) {
      cluster = flags_->cluster();
      const bool is_number = flags_->nproc.find_first_not_of("0123456789") == std::string::npos;
      if (is_number) flags_->check_filter(spec, processes_of(flags_->nproc));  // else each node says how many
    } else {
      processes = processes_of(flags_->nproc);
      flags_->check_filter(spec, processes);
      master = flags_->master(config);
    }
  } catch (const BadConfig& error) {
    std::fprintf(stderr, "troupe: %s\n", escape_text(error.what()).c_str());
    return 2;
  }
  if (!flags_->rdzv_backend.empty() || !flags_->rdzv_endpoint.empty() || !flags_->rdzv_conf.empty())
    warn("--rdzv-backend, --rdzv-endpoint and --rdzv-conf are needless: there is no rendezvous server");
  if (has_cluster) return launch::run_on_cluster(config, std::move(spec), cluster);
  launch::check_command(spec.command, spec.folder).value();
  if (processes > cores())
    warn(std::to_string(processes) + " ranks share the " + count_of(cores(), "core") + " of this machine");
  return run_here(config, spec, master, processes);
}

}  // namespace troupe::cli
