// troupe: starts, shows and ends clusters, and says what went wrong in a collective.
#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/standard_output.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/dashboard/dashboard.hpp"
#include "scheduler/cli/doctor/doctor.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/processes.hpp"
#include "scheduler/cli/run.hpp"
#include "scheduler/cli/serve.hpp"
#include "scheduler/cli/tune.hpp"
#include "scheduler/cli/up/up.hpp"
#include "scheduler/cluster/limits.hpp"
#include "scheduler/init/process_roles.hpp"
#include "scheduler/placement/placement.hpp"

namespace {

using namespace troupe::cli;

constexpr const char* kAbout =
    "Starts, shows and ends clusters that outlive a job.\n"
    "A program that uses troupe brings a cluster of its own when it is run; a cluster started here takes "
    "programs\n"
    "from this and other machines instead (PROGRAM --address HOST:PORT).\n";
/// An address of this machine is given as a number: a name may stand for another machine tomorrow.
const CLI::Validator kNumericAddress(
    [](std::string& text) {
      unsigned char bytes[sizeof(in6_addr)];
      const bool good =
          ::inet_pton(AF_INET, text.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), bytes) == 1;
      return good ? std::string() : "'" + text + "' is no numeric address, such as 127.0.0.1 or 0.0.0.0";
    },
    "");
const CLI::Validator kNodeName(
    [](std::string& text) {
      const bool good =
          !text.empty() && text.size() <= 64 &&
          std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
      return good ? std::string() : "a node's name has 1 to 64 printable characters without spaces";
    },
    "");

constexpr const char* kFooter =
    "A cluster over two machines:\n"
    "  one$  troupe start --head --bind 0.0.0.0 --detach\n"
    "  one$  troupe token --output FILE      a secret that lets one machine in: copy it there\n"
    "  two$  troupe start --address ONE:6380 --token-file FILE\n"
    "  one$  mnist --address ONE:6380\n"
    "  one$  troupe status\n"
    "  two$  troupe stop\n"
    "  one$  troupe stop\n";
constexpr std::int64_t kMostGrace = troupe::cluster::kMaxDrainMs / 1000;
constexpr const char* kFolderHelp =
    "Where keys and state are [default: $TROUPE_FOLDER, $XDG_STATE_HOME/troupe or ~/.local/state/troupe]";

void add_start(CLI::App& app, StartOptions& o) {
  app.footer(
      "  troupe start --head --detach\n"
      "  troupe start --address ONE:6380 --token-file FILE --cpus 8\n");
  app.add_flag("--head", o.head, "Start a new cluster: its head, and a node on this machine");
  app.add_option("--port", o.port, "Port of the head; 0: a free one")
      ->capture_default_str()
      ->check(whole_number(0, 65535));
  app.add_option("--bind", o.bind,
                 "Numeric address of the head; 0.0.0.0 lets other machines in (with keys alone)")
      ->capture_default_str()
      ->check(kNumericAddress);
  auto* address = app.add_option("--address", o.address, "Join the cluster whose head is at HOST:PORT")
                      ->check(host_and_port());
  app.add_option("--token-file", o.token_file,
                 "File with a join token, or - for standard input; needed once a folder")
      ->envname("TROUPE_TOKEN_FILE");
  app.add_option("--listen", o.listen,
                 "Numeric address for other nodes [default: the one that faces the head]")
      ->check(kNumericAddress);
  app.add_option("--name", o.name, "Name of the node, for people [default: the host's]")->check(kNodeName);
  app.add_option("--cpus", o.cpus, "CPUs that actors may hold [default: the cores this process may use]")
      ->check(number_of("CPUs", static_cast<int>(troupe::cluster::kMaxCpu_e4 / troupe::cluster::kCpu)));
  app.add_option("--gpus", o.gpus, "GPUs that actors may hold [default: all that CUDA finds]")
      ->check(whole_number(0, troupe::cluster::kMaxGpus));
  add_resource_options(app, o.other, kOfferedHelp);
  app.add_option("--folder", o.folder, kFolderHelp)->check(not_empty());
  app.add_option("--grace", o.grace_s,
                 "Seconds for a node that joined to drain when it gets SIGTERM; 0: it ends at once")
      ->capture_default_str()
      ->check(whole_number(0, kMostGrace));
  app.add_flag("--detach", o.detach,
               "Go on in the background; lines go to head.log or node.log in the folder");
  app.callback([&o, address] {
    if (o.head && address->count() > 0)
      throw CLI::ValidationError("--head begins a cluster and --address joins one: give one of them");
    if (!o.head && address->count() == 0)
      throw CLI::ValidationError("give --head to begin a cluster, or --address HOST:PORT to join one");
  });
}

constexpr const char* kDrainHelp = "Have a node leave when nothing runs there any more";
constexpr const char* kDrainFooter =
    "Nothing new starts on the node. Trainers leave it without the loss of a step, actors that may start "
    "again\n"
    "start elsewhere, and when nothing runs there, or the grace time is over, it leaves and is not started "
    "again.\n"
    "What runs then ends with it. troupe status says what it waits for.\n"
    "  troupe drain gpu-7 --grace 600\n"
    "  troupe drain gpu-7 --cancel      it goes on, if it has not left\n"
    "Exit code: 0 it has left (or, with --no-wait and --cancel, was told), 1 it was cancelled, died or\n"
    "cannot be drained. SIGTERM to troupe start --address drains its node.\n";

void add_drain(CLI::App& app, DrainOptions& o) {
  app.footer(kDrainFooter);
  app.add_option("node", o.node, "Its name or id, as troupe status shows it")
      ->required()
      ->check(not_empty("give a name or an id that troupe status shows"));
  app.add_option("--grace", o.grace_s, "Seconds after which it leaves in any case")
      ->capture_default_str()
      ->check(whole_number(0, kMostGrace));
  auto* cancel = app.add_flag("--cancel", o.cancel, "Cancel the drain");
  app.add_flag("--no-wait", o.no_wait, "Do not wait until it has left")->excludes(cancel);
  add_head_options(app, o.folder, o.address);
}

constexpr const char* kGroupFooter =
    "A program makes them (Session::placement_group): room on nodes that is reserved together. The list says "
    "where\n"
    "their bundles are, or what they wait for.\n"
    "  troupe group list\n"
    "  troupe group list -o json\n";

void add_group(CLI::App& app, GroupOptions& o) {
  app.footer(kGroupFooter);
  app.require_subcommand(1);
  auto* list = app.add_subcommand("list", "All of them, with the reason of each");
  list->footer("  troupe group list -o json\n");
  add_output_option(*list, o.output);
  add_head_options(*list, o.folder, o.address);
}

constexpr const char* kFlightHelp = "Say which ranks diverged in a collective that failed, and where";
constexpr const char* kFlightFooter =
    "Ranks leave dumps of their last 1,000 operations when a collective fails. Those of a machine are found\n"
    "by themselves; copy the dumps of other machines here and name them all:\n"
    "  troupe flight-recorder\n"
    "  troupe flight-recorder one/*.flight two/*.flight\n"
    "Where a program ran with TROUPE_TIMELINE=DIR, what its ranks did is a timeline, too:\n"
    "  troupe flight-recorder DIR --trace trace.json         for ui.perfetto.dev or chrome://tracing\n"
    "What it finds:\n"
    "  mismatch   ranks called different things at one number\n"
    "  missing    ranks never came to an operation that others were in\n"
    "  held up    ranks launched an operation and never waited for it, while others did\n"
    "  no dump    nothing is known of a rank: it was killed, it is on another machine, or nothing failed on "
    "it\n"
    "Dumps go to $TROUPE_FLIGHT_FOLDER, else $TROUPE_FOLDER/flight, else $XDG_STATE_HOME/troupe/flight,\n"
    "else ~/.local/state/troupe/flight; $TROUPE_FLIGHT_FOLDER set to nothing: nowhere. The last 20 "
    "failures are kept.\n"
    "Exit code: 0 all ranks agree, 1 some diverged or left no dump, 2 a dump cannot be read.\n";

void add_flight_recorder(CLI::App& app, FlightRecorderOptions& o) {
  app.footer(kFlightFooter);
  app.add_option("paths", o.paths, "Dumps, or folders with dumps [default: where dumps are written]")
      ->check(not_empty());
  app.add_option("--folder", o.folder,
                 "Of the cluster, where it was started with that: dumps are in its flight")
      ->check(not_empty());
  app.add_option("--last", o.last, "Rows of the table of operations")
      ->capture_default_str()
      ->check(whole_number(1, 1000));
  auto* all = app.add_flag("--all", o.all, "Every group and generation in full, not the newest alone");
  auto* json = app.add_flag("--json", o.json, "As JSON");
  app.add_option("--trace", o.trace, "Write all operations of all dumps to this file as a trace instead")
      ->check(not_empty())
      ->excludes(all)
      ->excludes(json);
}

constexpr const char* kDashboardFooter =
    "Shows nodes, jobs with their output, actors, sweeps and training runs to a browser, and changes "
    "nothing.\n"
    "It prints its address, and asks the head once a second while a page is open.\n"
    "  troupe dashboard\n"
    "  troupe dashboard --sweeps results --report run.jsonl      .events_json of a training run\n"
    "  troupe dashboard --bind 0.0.0.0 --tls-certificate CERT --tls-key KEY\n"
    "On another address than a loopback one a page needs the token that the printed address has.\n";

void add_dashboard(CLI::App& app, DashboardOptions& o) {
  app.footer(kDashboardFooter);
  app.add_option("--bind", o.bind,
                 "Numeric address of this machine; 0.0.0.0 lets other machines in (with a token)")
      ->capture_default_str()
      ->check(kNumericAddress);
  app.add_option("--port", o.port, "Port; 0: any free one")
      ->capture_default_str()
      ->check(whole_number(0, 65535));
  app.add_option("--address", o.where.address, "HOST:PORT of the head [default: as remembered]")
      ->check(host_and_port());
  app.add_option("--folder", o.where.folder, kFolderHelp)->check(not_empty());
  app.add_option("--sweeps", o.sweeps, "Where sweeps keep their records")->capture_default_str();
  app.add_option("--report", o.reports,
                 "File that a training run writes (.events_json), as often as need be");
  auto* certificate =
      app.add_option("--tls-certificate", o.tls_certificate, "PEM file, with its chain: HTTPS");
  auto* key = app.add_option("--tls-key", o.tls_key, "PEM file of its key")->needs(certificate);
  certificate->needs(key);
}

/// What is wrong with the first word, if it is no command: CLI11 says "A subcommand is required" to both.
std::optional<std::string> unknown_command(const CLI::App& app, int argc, char** argv) {
  std::string known;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known += (known.empty() ? "" : ", ") + command->get_name();
    if (argc > 1 && command->get_name() == argv[1]) return std::nullopt;
  }
  if (argc > 1 && argv[1][0] == '-') return std::nullopt;
  const std::string said =
      argc > 1 ? "there is no command '" + std::string(argv[1]) + "'" : "no command is given";
  return said + ": give one of " + known + " (troupe --help says more)";
}

int run(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "job") == 0) return job(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "queue") == 0) return queue(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "node") == 0) return node(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "actor") == 0) return actor(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "logs") == 0) return logs(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "dump") == 0) return dump(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "tune") == 0) return tune(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "serve") == 0) return serve(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "up") == 0) return up(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "run") == 0) RunCommand::drop_separator(argc, argv);
  CLI::App app(kAbout, "troupe");
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", "troupe " TROUPE_VERSION);
  StartOptions start_options;
  StatusOptions status_options;
  TokenOptions token_options;
  std::string stop_folder;
  auto* start_command =
      app.add_subcommand("start", "Start a cluster here, or join one; runs until Ctrl-C or troupe stop");
  add_start(*start_command, start_options);
  auto* status_command = app.add_subcommand("status", "Show nodes, jobs and actors");
  status_command->footer("  troupe status\n  troupe status -o json\n");
  add_head_options(*status_command, status_options.folder, status_options.address);
  add_output_option(*status_command, status_options.output);
  status_command->add_flag("--all", status_options.all, "Programs that have ended, too");
  status_command->add_flag("--json", status_options.json, "The same as -o json");
  auto* token_command = app.add_subcommand("token", "Make a join token: a secret that lets one machine in");
  token_command->footer(
      "  troupe token --output FILE      then copy it there, and troupe start --token-file FILE\n");
  token_command->add_option("--folder", token_options.folder, kFolderHelp)->check(not_empty());
  token_command->add_option("--lifetime", token_options.lifetime_s, "Seconds until it runs out")
      ->capture_default_str()
      ->check(whole_number(1, 2'592'000));
  token_command->add_option("--output", token_options.output,
                            "File for the token, which only you may read [default: standard output]");
  KeyOptions key_options;
  auto* key_command = app.add_subcommand("key", "List the machines that joined, or shut one out");
  key_command->require_subcommand(1);
  auto* key_list =
      key_command->add_subcommand("list", "Machines that may come in, their keys and their nodes");
  key_command->footer("  troupe key list\n  troupe key remove machine/1f2e3d4c5b6a7988\n");
  key_list->footer("  troupe key list -o json\n");
  add_output_option(*key_list, key_options.output);
  key_list->add_flag("--json", key_options.json, "The same as -o json");
  auto* key_remove = key_command->add_subcommand(
      "remove", "Shut a machine out, with its nodes and its programs' nodes: it needs a new token then");
  key_remove->footer("  troupe key remove machine/1f2e3d4c5b6a7988\n");
  key_remove->add_option("name", key_options.remove, "As troupe key list shows it")
      ->required()
      ->check(not_empty("give a name that troupe key list shows"));
  for (auto* command : {key_list, key_remove})
    command->add_option("--folder", key_options.folder, kFolderHelp)->check(not_empty());
  GroupOptions group_options;
  auto* group_command = app.add_subcommand("group", "List placement groups");
  add_group(*group_command, group_options);
  DrainOptions drain_options;
  auto* drain_command = app.add_subcommand("drain", kDrainHelp);
  add_drain(*drain_command, drain_options);
  auto* stop_command = app.add_subcommand("stop", "End the head and nodes that were started from the folder");
  stop_command->footer("  troupe stop\n");
  stop_command->add_option("--folder", stop_folder, kFolderHelp)->check(not_empty());
  app.add_subcommand("job", "Submit jobs to a cluster, follow and end them (troupe job --help)");
  app.add_subcommand("logs",
                     "Print what a job or an actor has written, or a node has logged (troupe logs --help)");
  app.add_subcommand("dump", "Have workers write down what they are at (troupe dump --help)");
  app.add_subcommand("node", "Show nodes (troupe node --help)");
  app.add_subcommand("actor", "Show actors, and kill one (troupe actor --help)");
  app.add_subcommand("queue", "Show and set queues of jobs: quotas and weights (troupe queue --help)");
  app.add_subcommand("serve", "Show what programs serve, and change it (troupe serve --help)");
  app.add_subcommand(
      "up", "Run a program on the hosts that srun, mpirun or Kubernetes starts it on (troupe up --help)");
  app.add_subcommand("tune", "Show sweeps, and stop them (troupe tune --help)");
  FlightRecorderOptions flight_options;
  auto* flight_command = app.add_subcommand("flight-recorder", kFlightHelp);
  add_flight_recorder(*flight_command, flight_options);
  DoctorOptions doctor_options;
  auto* doctor_command =
      app.add_subcommand("doctor", "Say what this machine lacks to run troupe well, and what to do about it");
  doctor_command->footer(
      "Exit code: 1 where something does not work at all.\n  troupe doctor -o json\n  troupe doctor "
      "./my_job\n");
  doctor_command
      ->add_option("program", doctor_options.program,
                   "An executable: whether this machine has the shared libraries that it needs")
      ->check(not_empty());
  add_head_options(*doctor_command, doctor_options.folder, doctor_options.address);
  add_output_option(*doctor_command, doctor_options.output);
  doctor_command->add_flag("--json", doctor_options.json, "The same as -o json");
  DashboardOptions dashboard_options;
  auto* dashboard_command = app.add_subcommand("dashboard", "Show the cluster to a browser");
  add_dashboard(*dashboard_command, dashboard_options);
  RunCommand run_command(app);
  if (const auto wrong = unknown_command(app, argc, argv)) {
    std::fprintf(stderr, "troupe: %s\n", troupe::shown_name(*wrong, 2000).c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  if (run_command.parsed()) return run_command.run();
  if (start_command->parsed()) return start(start_options);
  if (status_command->parsed()) return status(status_options);
  if (group_command->parsed()) return list_groups(group_options);
  if (drain_command->parsed()) return drain(drain_options);
  if (token_command->parsed()) return token(token_options);
  if (key_command->parsed()) return key(key_options);
  if (flight_command->parsed()) return flight_recorder(flight_options);
  if (stop_command->parsed()) return stop(stop_folder);
  if (doctor_command->parsed()) return doctor(doctor_options);
  if (dashboard_command->parsed()) return dashboard(dashboard_options);
  std::printf("%s", app.help().c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  troupe::become_role_if_asked();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // as in the heads and nodes that it starts
  try {
    const int code = run(argc, argv);
    // A full disk is told when the last of it is written.
    errno = 0;
    if (!troupe::has_output_failed()) return code;
    if (errno != 0 && errno != EPIPE)  // `| head` has what it wants
      std::fprintf(stderr, "troupe: cannot write the output: %s\n", std::strerror(errno));
    return code == 0 ? 1 : code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "troupe: %s\n", troupe::escape_text(error.what()).c_str());
    return 1;
  }
}
