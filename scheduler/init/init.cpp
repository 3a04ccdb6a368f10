#include "scheduler/init/init.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "runtime/core/ids.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/join_cluster.hpp"
#include "runtime/node/package.hpp"
#include "scheduler/init/process_roles.hpp"
#include "runtime/link/socket/link_codec.hpp"
#include "scheduler/placement/place.hpp"

namespace troupe {
namespace {

constexpr Duration kConfigured = std::chrono::seconds(30);
constexpr Duration kGoodbye = std::chrono::seconds(8);

/// A worker's lines, each with the worker's name before it.
void print_output(const wire::Output& output) {
  std::string text;
  for (std::string_view rest = output.text; !rest.empty();) {
    const auto end = rest.find('\n');
    text.append("[").append(output.label).append("] ").append(rest.substr(0, end)).append("\n");
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  [[maybe_unused]] const auto written =
      ::write(output.error ? STDERR_FILENO : STDOUT_FILENO, text.data(), text.size());
}

void node_lost() {
  log(LogLevel::kWarning, "this machine's node is gone: calls fail from now on");
}

std::string program_name(int argc, char** argv) {
  const std::string_view path = argc > 0 && argv[0] != nullptr ? argv[0] : "program";
  return std::string(path.substr(path.rfind('/') + 1));
}

/// "--address X" or "--address=X".
std::string address_in(int argc, char** argv) {
  constexpr std::string_view kFlag = "--address";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == kFlag && i + 1 < argc) return argv[i + 1];
    if (word.starts_with(kFlag) && word.substr(kFlag.size()).starts_with('='))
      return std::string(word.substr(kFlag.size() + 1));
  }
  return "";
}

Child start_gateway(const std::string& address, const InitOptions& options, const std::string& name) {
  const auto head = parse_endpoint(address).value();
  const auto folder =
      ClusterFolder::open(options.folder.empty() ? ClusterFolder::default_path() : options.folder).value();
  const char* from_environment = std::getenv("TROUPE_TOKEN_FILE");
  const std::string token_file =
      !options.token_file.empty() || from_environment == nullptr ? options.token_file : from_environment;
  std::optional<JoinToken> token;
  if (!token_file.empty()) token.emplace(read_token_file(token_file).value());
  const auto contact = folder.join(head, token).value();
  return start_member(folder, contact,
                      {.name = name, .gateway = true, .package = hash_own_executable().value()});
}

/// The driver's place, as its node tells it.
std::unique_ptr<Process> take_place(transport::LocalLink link) {
  auto received = wire::receive_control(link, kConfigured);
  const auto* config = received ? std::get_if<wire::Configure>(&received->message) : nullptr;
  if (config == nullptr)
    throw Unavailable({ErrorCode::kUnavailable, "the node gave this driver no place", "", ""});
  const Process::Config mine{config->node, config->process, {}, 0, config->label,
                             config->host, config->package};
  return std::make_unique<Process>(mine, std::move(link), node_lost, print_output);
}

}  // namespace

DriverSession::DriverSession(std::unique_ptr<EmbeddedCluster> cluster, std::unique_ptr<Child> gateway,
                             std::unique_ptr<Process> process)
    : Session(*process),
      cluster_(std::move(cluster)),
      gateway_(std::move(gateway)),
      owned_(std::move(process)) {}

DriverSession::DriverSession(DriverSession&&) noexcept = default;

DriverSession::~DriverSession() {
  if (owned_ == nullptr) return;
  owned_->end_cluster(kGoodbye);
  owned_.reset();
  cluster_.reset();
  if (gateway_ == nullptr) return;
  if (!wait_ended(*gateway_, kGoodbye)) signal_child(*gateway_, SIGKILL);
  reap(*gateway_);
}

DriverSession init(int argc, char** argv, const InitOptions& options) {
  become_role_if_asked(scheduler::place);
  if (options.nodes < 1 || options.nodes > 64) {
    throw BadConfig("cannot start a cluster", std::to_string(options.nodes) + " nodes on one machine",
                    "ask for 1 to 64");
  }
  ::signal(SIGPIPE, SIG_IGN);
  const std::string program = program_name(argc, argv);
  const std::string job =
      options.job.empty() ? program + "-" + to_hex(SystemRandom().next()).substr(0, 8) : options.job;
  const std::string address = options.address.empty() ? address_in(argc, argv) : options.address;
  std::unique_ptr<EmbeddedCluster> cluster;
  std::unique_ptr<Child> gateway;
  transport::LocalLink link;
  if (address.empty()) {
    cluster = std::make_unique<EmbeddedCluster>(EmbeddedOptions{options.nodes, options.cpus_per_node});
    link = cluster->take_driver_link();
  } else {
    gateway = std::make_unique<Child>(start_gateway(address, options, program));
    link = std::move(gateway->link);
  }
  auto process = take_place(std::move(link));
  const Future<wire::JobAnswer> registered(process->ask([&](std::uint64_t request) {
    return wire::JobAsk{request, job};
  }));
  const auto answer = registered.get(kConfigured);
  process->set_job(answer.job, answer.incarnation);
  return DriverSession(std::move(cluster), std::move(gateway), std::move(process));
}

}  // namespace troupe
