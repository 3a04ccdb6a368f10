#include "scheduler/init/embedded_cluster.hpp"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/random.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/node/program.hpp"
#include "scheduler/init/temporary_folder.hpp"
#include "scheduler/store/sqlite_storage.hpp"

namespace troupe {
namespace {

constexpr Duration kGoes = std::chrono::seconds(4);
/// A node that its driver has left tells its workers to leave, and ends.
constexpr Duration kEnds = std::chrono::seconds(1);
constexpr std::size_t kMostDeparted = 256;

void send_config(Child& child, const wire::Control& config, UniqueFd keys) {
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(keys));
  send_control(child.link, {}, config, std::move(fds));
}

}  // namespace

double usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

EmbeddedCluster::NodeLife EmbeddedCluster::new_life(std::size_t role) {
  return {NodeId{SystemRandom().next()}, CurveKeyPair::generate(), false, 0, role};
}

EmbeddedCluster::EmbeddedCluster(const EmbeddedOptions& options)
    : options_(options),
      base_(temporary_base()),
      folder_(choose_temporary_folder(base_)),
      head_keys_(CurveKeyPair::generate()),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = start_thread([this] { supervise(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return all_up_ || failure_; });
  if (!failure_) return;
  const ErrorInfo why = *failure_;
  lock.unlock();
  stop();
  throw_error(why);
}

EmbeddedCluster::~EmbeddedCluster() {
  stop();
}

void EmbeddedCluster::supervise() {
  try {
    add_head();
    for (int i = 0; i < options_.nodes; ++i) add_node(static_cast<std::size_t>(i));
    supervisor_.run(wake_.get(), [this] {
      publish();
      return false;
    });
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.info();
  }
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = supervisor_.failure();
    changed_.notify_all();
  }
  // Nodes first: the head hears them leave. Without them everybody's calls fail with a type.
  std::vector<std::size_t> nodes;
  for (const auto& node : nodes_) nodes.push_back(node.role);
  supervisor_.end(nodes, kGoes);
  supervisor_.end({head_role_}, kGoes);
  copies_.reset();
  node::kill_marked({mark_of_cluster(folder_)});  // what tasks left behind in sessions of their own
  publish();
}

void EmbeddedCluster::publish() {
  const std::lock_guard lock(mutex_);
  head_pid_ = supervisor_.pid(head_role_);
  node_pids_.clear();
  for (const auto& node : nodes_) node_pids_.push_back(supervisor_.pid(node.role));
  if (!all_up_ && supervisor_.all_up()) {
    all_up_ = true;
    changed_.notify_all();
  }
}

void EmbeddedCluster::add_head() {
  Supervisor::Role role;
  role.name = "the head";
  role.start = [this] { return start_head(); };
  role.on_ready = [this](Child&, const std::string& address) { head_is_up(address); };
  role.on_message = [this](const wire::Control& message) {
    const auto* answer = std::get_if<wire::Answer>(&message);
    if (answer == nullptr || !answer->ok) return;
    for (auto& node : nodes_) node.admitted = node.admitted || node.admit_request == answer->request;
  };
  role.on_death = [this](const std::string&) { head_up_ = false; };
  role.silence = kMostSilence;
  head_role_ = supervisor_.add(std::move(role));
}

void EmbeddedCluster::add_node(std::size_t index) {
  Supervisor::Role role;
  role.name = "node " + std::to_string(index);
  role.start = [this, index] { return start_node(index); };
  role.may_start = [this, index] { return may_start_node(index); };
  role.on_ready = [this, index](Child& child, const std::string&) {
    if (index != 0) return;
    UniqueFd process = child.pidfd.duplicate().value();
    const std::lock_guard lock(mutex_);
    driver_link_ = std::move(child.link);
    driver_node_ = std::move(process);
    changed_.notify_all();
  };
  role.on_death = [this, index](const std::string& how) { node_died(index, how); };
  if (index != 0) role.silence = kMostSilence;  // the driver watches its own
  nodes_.push_back(new_life(supervisor_.add(std::move(role))));
}

Child EmbeddedCluster::start_copy(const std::string& role) {
  if (!std::exchange(copies_tried_, true)) {
    if (auto executed = ForkServer::execute({mark_of_cluster(folder_)})) {
      copies_.emplace(*std::move(executed));
      supervisor_.watch(copies_->death_fd(), [this] {
        drop_copies({ErrorCode::kIo, "the fork server is gone", copies_->end(), ""});
      });
    }
  }
  if (copies_) {
    auto child = copies_->start({.role = role});
    if (child) return *std::move(child);
    drop_copies(child.error());
  }
  return start_child({.role = role, .environment = {mark_of_cluster(folder_)}}).value();
}

void EmbeddedCluster::drop_copies(const ErrorInfo& why) {
  // A program with threads of its own is executed each time, as it says in the documentation.
  const LogLevel level = why.code == ErrorCode::kRefused ? LogLevel::kDebug : LogLevel::kWarning;
  log(level, why.message() + "; the head and nodes are executed instead");
  supervisor_.watch(-1);
  copies_.reset();
}

Child EmbeddedCluster::start_head() {
  KeyBundle bundle{head_keys_, head_keys_.public_key(), {}};
  for (auto& node : nodes_) {
    bundle.allowed.push_back({node.keys.public_key(), to_hex(node.id.value)});
    node.admitted = true;
  }
  auto keys = hand_over(bundle).value();
  auto child = start_copy("head");
  send_config(child, wire::HeadConfig{head_address_, folder_, "", ::getpid()}, std::move(keys));
  if (!std::exchange(others_removed_, true)) remove_abandoned_folders(base_);  // while the head loads
  return child;
}

void EmbeddedCluster::head_is_up(const std::string& address) {
  head_address_ = address;
  head_up_ = true;
  if (!held_) held_ = hold_temporary_folder(folder_).value();
  for (const auto& left : departed_) supervisor_.tell(head_role_, wire::ToHead{left});
}

bool EmbeddedCluster::may_start_node(std::size_t index) {
  auto& node = nodes_[index];
  if (!head_up_) {
    node.admit_request = 0;  // the next head has the key from its start
    return false;
  }
  if (!node.admitted && node.admit_request == 0) {
    node.admit_request = next_request_++;
    supervisor_.tell(head_role_,
                     wire::AdmitAsk{node.admit_request, node.id, to_string(node.keys.public_key())});
  }
  return node.admitted;
}

Child EmbeddedCluster::start_node(std::size_t index) {
  const auto& node = nodes_[index];
  auto keys = hand_over({node.keys, head_keys_.public_key(), {}}).value();
  auto child = start_copy("node");
  wire::NodeConfig config;
  config.id = node.id;
  config.name = std::to_string(index);
  config.head = head_address_;
  config.address = "127.0.0.1:0";
  const double cpus = options_.cpus_per_node > 0 ? options_.cpus_per_node : usable_cores();
  config.cpu_e4 = std::llround(cpus * cluster::kCpu);
  config.gpus = std::max(-1, options_.gpus_per_node);
  config.gpu_part = static_cast<std::int32_t>(index);
  config.gpu_parts = options_.nodes;
  config.memory = options_.memory_per_node;
  config.other = options_.other;
  config.hosts_driver = index == 0;
  config.temporary_folder = folder_;
  config.launcher = ::getpid();
  send_config(child, config, std::move(keys));
  return child;
}

void EmbeddedCluster::node_died(std::size_t index, const std::string& how) {
  // Its supervisor saw it die: the head need not wait for heartbeats to run out. A dead id stays dead.
  auto& node = nodes_[index];
  departed_.push_back({node.id, how});
  if (departed_.size() > kMostDeparted) departed_.erase(departed_.begin());
  if (head_up_) supervisor_.tell(head_role_, wire::ToHead{departed_.back()});
  node = new_life(node.role);
  if (index != 0) return;
  const std::lock_guard lock(mutex_);
  driver_link_.reset();  // nobody took it, and now it leads nowhere
  driver_node_.reset();
}

Result<SocketLink> EmbeddedCluster::next_driver_link() {
  std::unique_lock lock(mutex_);
  const auto is_ready = [this] { return driver_link_ || failure_ || stopping_; };
  if (driver_node_ && !changed_.wait_for(lock, kEnds, is_ready) && driver_node_) {
    log(LogLevel::kWarning, "node 0 does not end, though this program has lost it: it is killed");
    ::syscall(SYS_pidfd_send_signal, driver_node_.get(), SIGKILL, nullptr, 0);
  }
  changed_.wait(lock, is_ready);
  if (driver_link_) return *std::exchange(driver_link_, std::nullopt);
  if (failure_) return *failure_;
  return ErrorInfo{ErrorCode::kUnavailable, "the cluster has no place for this driver", "it ends", ""};
}

pid_t EmbeddedCluster::head_pid() const {
  const std::lock_guard lock(mutex_);
  return head_pid_;
}

std::vector<pid_t> EmbeddedCluster::node_pids() const {
  const std::lock_guard lock(mutex_);
  return node_pids_;
}

void EmbeddedCluster::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    driver_link_.reset();
    changed_.notify_all();
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  remove_store(folder_);
}

}  // namespace troupe
