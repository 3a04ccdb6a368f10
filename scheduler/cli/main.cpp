// troupe: starts, shows and ends clusters, and says what went wrong in a collective.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "scheduler/init/process_roles.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/placement/place.hpp"

namespace {

using namespace troupe::cli;

constexpr const char* kAbout =
    "Starts, shows and ends clusters that outlive a job.\n"
    "A program that uses troupe brings a cluster of its own when it is run; a cluster started here takes "
    "programs\n"
    "from this and other machines instead (PROGRAM --address HOST:PORT).\n";
constexpr const char* kFooter =
    "A cluster over two machines:\n"
    "  one$  troupe start --head --bind 0.0.0.0 --detach\n"
    "  one$  troupe token                    prints a secret that lets one machine in\n"
    "  two$  troupe start --address ONE:6380 --token-file -     and paste it\n"
    "  one$  mnist --address ONE:6380\n"
    "  one$  troupe status\n"
    "  two$  troupe stop\n"
    "  one$  troupe stop\n";
constexpr const char* kFolderHelp =
    "Where keys and state are [default: $XDG_STATE_HOME/troupe or ~/.local/state/troupe]";

void add_start(CLI::App& app, StartOptions& o) {
  app.add_flag("--head", o.head, "Start a new cluster: its head, and a node on this machine");
  app.add_option("--port", o.port, "Port of the head")->capture_default_str();
  app.add_option("--bind", o.bind,
                 "Numeric address of the head; 0.0.0.0 lets other machines in (with keys alone)")
      ->capture_default_str();
  auto* address = app.add_option("--address", o.address, "Join the cluster whose head is at HOST:PORT");
  app.add_option("--token-file", o.token_file,
                 "File with a join token, or - for standard input; needed once a folder")
      ->envname("TROUPE_TOKEN_FILE");
  app.add_option("--listen", o.listen,
                 "Numeric address for other nodes [default: the one that faces the head]");
  app.add_option("--name", o.name, "Name of the node, for people [default: the host's]");
  app.add_option("--cpus", o.cpus, "CPUs that actors may hold [default: the cores this process may use]")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--folder", o.folder, kFolderHelp);
  app.add_flag("--detach", o.detach,
               "Go on in the background; lines go to head.log or node.log in the folder");
  app.callback([&o, address] {
    if (o.head && address->count() > 0)
      throw CLI::ValidationError("--head begins a cluster and --address joins one: give one of them");
    if (!o.head && address->count() == 0)
      throw CLI::ValidationError("give --head to begin a cluster, or --address HOST:PORT to join one");
  });
}

constexpr const char* kFlightHelp = "Say which ranks diverged in a collective that failed, and where";
constexpr const char* kFlightFooter =
    "Ranks leave dumps of their last 1,000 operations when a collective fails. Those of a machine are found\n"
    "by themselves; copy the dumps of other machines here and name them all:\n"
    "  troupe flight-recorder\n"
    "  troupe flight-recorder one/*.flight two/*.flight\n"
    "What it finds:\n"
    "  mismatch   ranks called different things at one number\n"
    "  missing    ranks never came to an operation that others were in\n"
    "  held up    ranks launched an operation and never waited for it, while others did\n"
    "  message    a send or a receive without its partner, or unlike it\n"
    "  no dump    nothing is known of a rank: it was killed, or it is on another machine\n"
    "Dumps go to $TROUPE_FLIGHT_FOLDER, else $XDG_STATE_HOME/troupe/flight, else\n"
    "~/.local/state/troupe/flight; set to nothing: nowhere. The last 20 groups are kept.\n"
    "Exit code: 0 all ranks agree, 1 some diverged or left no dump, 2 a dump cannot be read.\n";

void add_flight_recorder(CLI::App& app, FlightRecorderOptions& o) {
  app.footer(kFlightFooter);
  app.add_option("paths", o.paths, "Dumps, or folders with dumps [default: where dumps are written]");
  app.add_option("--last", o.last, "Rows of the table of operations")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--all", o.all, "Every group and generation in full, not the newest alone");
  app.add_flag("--json", o.json, "As JSON");
}

int run(int argc, char** argv) {
  CLI::App app(kAbout, "troupe");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "troupe 0.1.0");
  StartOptions start_options;
  StatusOptions status_options;
  TokenOptions token_options;
  std::string stop_folder;
  auto* start_command =
      app.add_subcommand("start", "Start a cluster here, or join one; runs until Ctrl-C or troupe stop");
  add_start(*start_command, start_options);
  auto* status_command = app.add_subcommand("status", "Show nodes, jobs and actors");
  status_command->add_option("--folder", status_options.folder, kFolderHelp);
  status_command->add_option("--address", status_options.address,
                             "HOST:PORT of the head [default: as remembered]");
  status_command->add_flag("--json", status_options.json, "As JSON");
  auto* token_command = app.add_subcommand("token", "Print a join token: a secret that lets one machine in");
  token_command->add_option("--folder", token_options.folder, kFolderHelp);
  token_command->add_option("--lifetime", token_options.lifetime_s, "Seconds until it runs out")
      ->capture_default_str()
      ->check(CLI::Range(1, 2'592'000));
  auto* stop_command = app.add_subcommand("stop", "End the head and nodes that were started from the folder");
  stop_command->add_option("--folder", stop_folder, kFolderHelp);
  FlightRecorderOptions flight_options;
  auto* flight_command = app.add_subcommand("flight-recorder", kFlightHelp);
  add_flight_recorder(*flight_command, flight_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (start_command->parsed()) return start(start_options);
  if (status_command->parsed()) return status(status_options);
  if (token_command->parsed()) return token(token_options);
  if (flight_command->parsed()) return flight_recorder(flight_options);
  return stop(stop_folder);
}

}  // namespace

int main(int argc, char** argv) {
  troupe::become_role_if_asked(troupe::scheduler::place);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return 1;
  }
}
