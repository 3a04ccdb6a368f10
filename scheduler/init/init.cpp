#include "scheduler/init/init.hpp"

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/core/ids.hpp"
#include "runtime/core/random.hpp"
#include "runtime/core/standard_output.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/host/this_thread.hpp"
#include "runtime/node/package.hpp"
#include "scheduler/init/driver_place.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/job_place.hpp"
#include "scheduler/init/join_cluster.hpp"
#include "scheduler/init/process_roles.hpp"
#include "scheduler/init/program_end.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe {
namespace {

constexpr Duration kGoodbye = std::chrono::seconds(8);
constexpr const char* kDied = "its program's node has died";

std::string program_name(int argc, char** argv) {
  const std::string_view path = argc > 0 && argv[0] != nullptr ? argv[0] : "program";
  return std::string(path.substr(path.rfind('/') + 1));
}

/// "--address X" or "--address=X".
std::string address_in(int argc, char** argv) {
  constexpr std::string_view kFlag = "--address";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    std::string value;
    if (word == kFlag) {
      if (i + 1 < argc) value = argv[i + 1];
    } else if (word.starts_with(kFlag) && word.substr(kFlag.size()).starts_with('=')) {
      value = word.substr(kFlag.size() + 1);
    } else {
      continue;
    }
    if (!value.empty()) return value;
    // An empty variable in a script must not start a cluster on the spot.
    throw BadConfig("--address has no value", "the cluster's head was not named",
                    "write --address HOST:PORT, or leave it out");
  }
  return "";
}

}  // namespace

/// The driver's own node in a running cluster.
class Gateway {
 public:
  Gateway(const std::string& address, const InitOptions& options, std::string name)
      : head_(parse_endpoint(address).value()),
        token_(given_token(options)),
        // Without a token the folder must be there already.
        folder_((token_ ? ClusterFolder::open(options.folder) : ClusterFolder::find(options.folder)).value()),
        name_(std::move(name)) {}
  ~Gateway() { end(kGoodbye); }
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  /// Starts a node, in place of the former one that has died.
  Result<SocketLink> next_link() {
    end(Duration(0));
    const auto contact = folder_.join(head_, token_).value();
    token_.reset();  // used up: the folder is in
    if (member_) static_cast<void>(tell_departed(contact, *std::exchange(member_, std::nullopt), kDied));
    MemberOptions member{.name = name_, .gateway = true, .package = own_package().value()};
    child_.emplace(start_member(folder_, contact, member));
    member_ = member.identity;
    return std::move(child_->link);
  }

 private:
  static std::optional<JoinToken> given_token(const InitOptions& options) {
    const char* from_environment = std::getenv("TROUPE_TOKEN_FILE");
    const std::string file =
        !options.token_file.empty() || from_environment == nullptr ? options.token_file : from_environment;
    return file.empty() ? std::nullopt : std::optional(read_token_file(file).value());
  }
  void end(Duration grace) {
    if (!child_) return;
    end_child(*child_, grace);
    child_.reset();
  }

  const Endpoint head_;
  std::optional<JoinToken> token_;
  const ClusterFolder folder_;
  const std::string name_;
  std::optional<Child> child_;
  std::optional<NodeIdentity> member_;  ///< its node that runs, or died last
};

DriverSession::DriverSession(std::unique_ptr<EmbeddedCluster> cluster, std::unique_ptr<Gateway> gateway,
                             std::unique_ptr<DriverPlace> place)
    : Session(*place), cluster_(std::move(cluster)), gateway_(std::move(gateway)), place_(std::move(place)) {}

DriverSession::DriverSession(DriverSession&&) noexcept = default;

DriverSession::~DriverSession() {
  if (place_ == nullptr) return;
  life_.reset();
  if (place_->is_in_child()) {  // the cluster is the parent's, and the threads to join are not here
    static_cast<void>(place_.release());
    static_cast<void>(gateway_.release());
    static_cast<void>(cluster_.release());
    return;
  }
  auto end = [cluster = std::move(cluster_), gateway = std::move(gateway_),
              place = std::move(place_)]() mutable {
    if (cluster != nullptr) cluster->expect_end();
    place->leave(kGoodbye);
    if (cluster != nullptr) cluster->stop();  // who waits for a link to a new node is told that there is none
    place.reset();
    gateway.reset();
    cluster.reset();
  };
  // In a callback or an actor it would wait for itself.
  const bool is_waited_for = this_thread.turn != nullptr || this_thread.may_not_wait;
  if (is_waited_for) {
    end_elsewhere(std::move(end));
  } else {
    end();
  }
}

const EmbeddedProcesses* DriverSession::embedded() const {
  return cluster_.get();
}

DriverSession init(int argc, char** argv, const InitOptions& options) {
  become_role_if_asked();
  say_uncaught_errors(program_name(argc, argv));
  if (options.nodes < 1 || options.nodes > 64) {
    throw BadConfig("cannot start a cluster", std::to_string(options.nodes) + " nodes on one machine",
                    "ask for 1 to 64");
  }
  if (!(options.cpus_per_node >= 0 && options.cpus_per_node * cluster::kCpu <= cluster::kMaxCpu_e4)) {
    throw BadConfig("cannot start a cluster", "cpus_per_node = " + std::to_string(options.cpus_per_node),
                    "ask for 0 (the cores this process may use) to 100,000");
  }
  if (options.gpus_per_node > cluster::kMaxGpus) {
    throw BadConfig("cannot start a cluster", "gpus_per_node = " + std::to_string(options.gpus_per_node),
                    "ask for 0 to " + std::to_string(cluster::kMaxGpus) + ", or for -1 (all there are)");
  }
  auto other = cluster::other_resources(0, options.resources_per_node, options.labels);
  if (std::string wrong = cluster::wrong_about(other); !wrong.empty())
    throw BadConfig("cannot start a cluster", std::move(wrong), "see resources_per_node and labels");
  check_descriptor_limit().value();
  check_thread_limit(kThreadsOfPart).value();
  end_without_reader();
  watch_program_end();
  const std::string program = program_name(argc, argv);
  const std::string job =
      options.job.empty() ? program + "-" + to_hex(SystemRandom().next()).substr(0, 8) : options.job;
  const std::string address = options.address.empty() ? address_in(argc, argv) : options.address;
  std::unique_ptr<EmbeddedCluster> cluster;
  std::unique_ptr<Gateway> gateway;
  DriverPlace::NextLink next_link;
  if (const std::string socket = socket_of_this_job(); address.empty() && !socket.empty()) {
    next_link = [socket] { return Result<SocketLink>(link_of_this_job(socket)); };
  } else if (address.empty()) {
    cluster = std::make_unique<EmbeddedCluster>(EmbeddedOptions{options.nodes, options.cpus_per_node,
                                                                options.gpus_per_node,
                                                                options.memory_per_node, std::move(other)});
    next_link = [c = cluster.get()] { return c->next_driver_link(); };
  } else {
    gateway = std::make_unique<Gateway>(address, options, program);
    next_link = [g = gateway.get()] { return g->next_link(); };
  }
  auto place = std::make_unique<DriverPlace>(job, std::move(next_link));
  return DriverSession(std::move(cluster), std::move(gateway), std::move(place));
}

}  // namespace troupe
