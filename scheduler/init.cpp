#include "scheduler/init.hpp"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "runtime/core/log.hpp"
#include "runtime/node/launcher.hpp"
#include "runtime/node/roles.hpp"
#include "runtime/wire/link_codec.hpp"
#include "scheduler/placement.hpp"

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
  [[maybe_unused]] const auto written = ::write(output.error ? STDERR_FILENO : STDOUT_FILENO, text.data(), text.size());
}

void node_lost() { log(LogLevel::kWarning, "this machine's node is gone: calls fail from now on"); }

std::string program_name(int argc, char** argv) {
  const std::string_view path = argc > 0 && argv[0] != nullptr ? argv[0] : "program";
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

DriverSession::DriverSession(std::unique_ptr<EmbeddedCluster> cluster, std::unique_ptr<Process> process)
    : Session(*process), cluster_(std::move(cluster)), owned_(std::move(process)) {}

DriverSession::DriverSession(DriverSession&&) noexcept = default;

DriverSession::~DriverSession() {
  if (owned_ == nullptr) return;
  owned_->end_cluster(kGoodbye);
  owned_.reset();
  cluster_.reset();
}

DriverSession init(int argc, char** argv, const InitOptions& options) {
  become_role_if_asked(scheduler::place);
  if (options.nodes < 1 || options.nodes > 64) {
    throw BadConfig("cannot start a cluster", std::to_string(options.nodes) + " nodes on one machine", "ask for 1 to 64");
  }
  ::signal(SIGPIPE, SIG_IGN);
  auto cluster = std::make_unique<EmbeddedCluster>(EmbeddedOptions{options.nodes, options.cpus_per_node});
  auto link = cluster->take_driver_link();
  auto received = wire::receive_control(link, kConfigured);
  const auto* config = received ? std::get_if<wire::Configure>(&received->message) : nullptr;
  if (config == nullptr) throw Unavailable({ErrorCode::kUnavailable, "the node gave this driver no place", "", ""});
  auto process = std::make_unique<Process>(Process::Config{config->node, config->process, {}, 0, config->label, config->host},
                                           std::move(link), node_lost, print_output);
  const std::string job = options.job.empty() ? program_name(argc, argv) : options.job;
  const Future<wire::JobAnswer> registered(process->ask([&](std::uint64_t request) { return wire::JobAsk{request, job}; }));
  const auto answer = registered.get(kConfigured);
  process->set_job(answer.job, answer.incarnation);
  return DriverSession(std::move(cluster), std::move(process));
}

}  // namespace troupe
