#include "scheduler/init/embedded_cluster.hpp"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>  // NOLINT: mkdtemp
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "runtime/core/ids.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/link/socket/link_codec.hpp"

namespace troupe {
namespace {

constexpr Duration kComesUp = std::chrono::seconds(30);
constexpr Duration kGoes = std::chrono::seconds(4);

std::string make_folder() {
  const char* base = std::getenv("XDG_RUNTIME_DIR");
  std::string path = std::string(base == nullptr ? "/tmp" : base) + "/troupe-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    throw_error(io_error("cannot make a folder " + path + " for the cluster's state", errno,
                         "free space, or set XDG_RUNTIME_DIR"));
  }
  return path;
}

}  // namespace

double usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string wait_until_ready(Child& child, const std::string& role) {
  auto answer = wire::receive_control(child.link, kComesUp);
  if (answer) {
    if (const auto* ready = std::get_if<wire::Ready>(&answer->message)) return ready->address;
    if (const auto* failed = std::get_if<wire::NotReady>(&answer->message)) throw_error(failed->error);
  }
  signal_child(child, SIGKILL);
  throw_error({ErrorCode::kUnavailable, "the " + role + " of the cluster did not come up",
               answer ? "it said something else" : answer.error().why,
               "look at the lines above; TROUPE_LOG=debug prints more"});
}

EmbeddedCluster::EmbeddedCluster(const EmbeddedOptions& options)
    : options_(options),
      folder_(make_folder()),
      head_keys_(CurveKeyPair::generate()),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  try {
    for (int i = 0; i < options_.nodes; ++i) {
      node_keys_.push_back(CurveKeyPair::generate());
      nodes_.push_back({NodeId{SystemRandom().next()}, {}, false});
    }
    start_head("127.0.0.1:0");
    for (int i = 0; i < options_.nodes; ++i) start_node(i);
    for (auto& node : nodes_) wait_until_ready(node.child, "node");
    driver_link_ = std::move(nodes_[0].child.link);
    supervisor_ = std::thread([this] { supervise(); });
  } catch (...) {
    stop();
    throw;
  }
}

EmbeddedCluster::~EmbeddedCluster() {
  stop();
}

void EmbeddedCluster::start_head(const std::string& address) {
  KeyBundle bundle{head_keys_, head_keys_.public_key(), {}};
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    bundle.allowed.push_back({node_keys_[i].public_key(), to_hex(nodes_[i].id.value)});
  auto keys = hand_over(bundle).value();
  auto child = start_child({.role = "head"}).value();
  const int fd = keys.get();
  wire::send_control(child.link, {}, wire::HeadConfig{address, folder_, "", true}, std::span(&fd, 1));
  head_address_ = wait_until_ready(child, "head");
  const std::lock_guard lock(mutex_);
  head_ = std::move(child);
}

void EmbeddedCluster::start_node(int index) {
  auto keys = hand_over({node_keys_[index], head_keys_.public_key(), {}}).value();
  auto child = start_child({.role = "node"}).value();
  wire::NodeConfig config;
  config.id = nodes_[index].id;
  config.name = std::to_string(index);
  config.head = head_address_;
  config.address = "127.0.0.1:0";
  const double cpus = options_.cpus_per_node > 0 ? options_.cpus_per_node : usable_cores();
  config.cpu_e4 = static_cast<std::int64_t>(cpus * cluster::kCpu);
  config.hosts_driver = index == 0;
  const int fd = keys.get();
  wire::send_control(child.link, {}, config, std::span(&fd, 1));
  const std::lock_guard lock(mutex_);
  nodes_[index].child = std::move(child);
}

void EmbeddedCluster::supervise() {
  for (;;) {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      waits.push_back({head_.pidfd.get(), POLLIN, 0});
      for (const auto& node : nodes_) waits.push_back({node.ended ? -1 : node.child.pidfd.get(), POLLIN, 0});
    }
    ::poll(waits.data(), waits.size(), -1);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (waits[i + 2].revents == 0) continue;
        nodes_[i].ended = true;
        const std::string how = reap(nodes_[i].child);
        // Its supervisor saw it die: the head need not wait for heartbeats to run out.
        wire::send_control(head_.link, {}, wire::ToHead{cluster::NodeLeft{nodes_[i].id, how}});
      }
    }
    if (waits[1].revents == 0) continue;
    log(LogLevel::kWarning, "the head died (" + reap(head_) + "); it is started again from its store");
    try {
      start_head(head_address_);
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("the head does not come back: ") + error.what());
      return;
    }
  }
}

transport::LocalLink EmbeddedCluster::take_driver_link() {
  return std::move(driver_link_);
}

pid_t EmbeddedCluster::head_pid() const {
  const std::lock_guard lock(mutex_);
  return head_.pid;
}

std::vector<pid_t> EmbeddedCluster::node_pids() const {
  const std::lock_guard lock(mutex_);
  std::vector<pid_t> pids;
  for (const auto& node : nodes_) pids.push_back(node.child.pid);
  return pids;
}

void EmbeddedCluster::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  if (supervisor_.joinable()) supervisor_.join();
  driver_link_ = {};
  const auto end = [](Child& child) {
    if (child.pid < 0) return;
    child.link = {};  // it leaves when its launcher is gone
    if (!wait_ended(child, kGoes)) signal_child(child, SIGKILL);
    reap(child);
  };
  for (auto& node : nodes_) node.child.link = {};
  for (auto& node : nodes_) {
    if (!node.ended) end(node.child);
  }
  if (head_.pid > 0) wire::send_control(head_.link, {}, wire::Leave{"the cluster ends"});
  end(head_);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace troupe
