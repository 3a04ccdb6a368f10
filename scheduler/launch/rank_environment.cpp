#include "scheduler/launch/rank_environment.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

namespace troupe::launch {

std::vector<std::string> rank_environment(const RunSpec& spec, const RankPlan& plan, std::uint32_t local_rank,
                                          const std::string& error_file, const std::string& interface,
                                          const Inherited& inherited) {
  std::vector<std::string> set;
  const auto put = [&](const char* name, const std::string& value) { set.push_back(name + ("=" + value)); };
  const auto put_number = [&](const char* name, std::uint32_t value) { put(name, std::to_string(value)); };
  const auto put_if_unset = [&](const char* name, const std::string& value) {
    if (inherited(name) == nullptr) put(name, value);
  };
  const std::uint32_t rank = plan.first_rank + local_rank;
  put_number("RANK", rank);
  put_number("LOCAL_RANK", local_rank);
  put_number("WORLD_SIZE", plan.world);
  put_number("LOCAL_WORLD_SIZE", plan.processes);
  put_number("GROUP_RANK", plan.group_rank);
  put_number("GROUP_WORLD_SIZE", plan.group_world);
  put("ROLE_NAME", spec.role);  // a run has one role
  put_number("ROLE_RANK", rank);
  put_number("ROLE_WORLD_SIZE", plan.world);
  put("MASTER_ADDR", plan.master_addr);
  put_number("MASTER_PORT", plan.master_port);
  // Of a launcher above this one, where it wins over MASTER_PORT: nobody but rank 0 listens there.
  if (inherited("TROUPE_MASTER_PORT") != nullptr) put_number("TROUPE_MASTER_PORT", plan.master_port);
  put_number("TORCHELASTIC_RESTART_COUNT", plan.restarts);
  put_number("TORCHELASTIC_MAX_RESTARTS", plan.max_restarts);
  put("TORCHELASTIC_RUN_ID", spec.run_id);
  put("TORCHELASTIC_USE_AGENT_STORE", "False");  // rank 0 serves the store itself
  put("TORCHELASTIC_ERROR_FILE", error_file);
  put_if_unset("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (sets_one_thread(plan, inherited)) put_number("OMP_NUM_THREADS", 1);
  if (!interface.empty()) {
    put_if_unset("GLOO_SOCKET_IFNAME", interface);
    put_if_unset("NCCL_SOCKET_IFNAME", interface);
  }
  if (!spec.job_key.empty()) put_if_unset("TROUPE_JOB_KEY", spec.job_key);
  return set;
}

bool sets_one_thread(const RankPlan& plan, const Inherited& inherited) {
  // Of ranks on several nodes, too: libraries sum in another order on other numbers of threads.
  return plan.world > 1 && inherited("OMP_NUM_THREADS") == nullptr;
}

std::vector<std::string> with_changes(char** environment, const std::vector<std::string>& changes) {
  std::vector<std::string> all;
  for (char** at = environment; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const bool is_changed = std::any_of(changes.begin(), changes.end(), [&](const std::string& change) {
      return entry.starts_with(std::string_view(change).substr(0, change.find('=') + 1));
    });
    if (!is_changed) all.emplace_back(entry);
  }
  all.insert(all.end(), changes.begin(), changes.end());
  return all;
}

std::string interface_of(const std::string& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(first, &::freeifaddrs);
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (at->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr, text,
                  sizeof text);
    }
    if (address == text) return at->ifa_name;
  }
  return {};
}

}  // namespace troupe::launch
