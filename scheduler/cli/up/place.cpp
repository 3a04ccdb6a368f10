#include "scheduler/cli/up/place.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace troupe::cli {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* hosts;
  const char* run;   ///< a job's number
  const char* step;  ///< with it, where a job has several runs; null: none
};
constexpr Launcher kLaunchers[] = {
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", nullptr},
    {"PMI", "PMI_RANK", "PMI_SIZE", "PMI_ID", nullptr},
    {"a Kubernetes Job", "JOB_COMPLETION_INDEX", "TROUPE_HOSTS", "TROUPE_RUN", nullptr},
};

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Slurm gives a host to a job, and a job's tasks there share that. What it does not say is not bounded by
/// it.
void read_share_of_slurm(const std::function<std::optional<std::string>(const char*)>& variable,
                         Place& place) {
  const auto number = [&](const char* name) -> std::optional<int> {
    const auto text = variable(name);
    const auto value = text ? number_in(*text) : std::nullopt;
    return value && *value > 0 ? value : std::nullopt;
  };
  const int tasks = number("SLURM_NTASKS_PER_NODE").value_or(1);
  if (const auto task = number("SLURM_CPUS_PER_TASK")) {
    place.cpus = *task;
  } else if (const auto node = number("SLURM_CPUS_ON_NODE")) {
    place.cpus = static_cast<double>(*node) / tasks;
  }
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  if (const auto node = number("SLURM_MEM_PER_NODE")) {
    place.memory_bytes = *node * kMiB / tasks;
  } else if (const auto cpu = number("SLURM_MEM_PER_CPU"); cpu && place.cpus) {
    place.memory_bytes = static_cast<std::int64_t>(*cpu * *place.cpus) * kMiB;
  }
}

/// A name of a folder, whatever the launcher's is.
std::string plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char c) {
        return !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-');
      },
      '_');
  return text.substr(0, 100);
}

}  // namespace

Result<std::optional<Place>> place_from(
    const std::function<std::optional<std::string>(const char*)>& variable) {
  const auto no_number = [](const char* name, const std::string& text) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot tell which host this is",
                     std::string(name) + "=" + text + " is no number from 0 on", "give --rank and --hosts"};
  };
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = variable(launcher.rank);
    if (!rank) continue;
    Place place;
    place.launcher = launcher.name;
    const auto number = number_in(*rank);
    if (!number) return no_number(launcher.rank, *rank);
    place.rank = *number;
    if (const auto hosts = variable(launcher.hosts)) {
      const auto count = number_in(*hosts);
      if (!count || *count == 0) return no_number(launcher.hosts, *hosts);
      place.hosts = *count;
    }
    place.run = plain(variable(launcher.run).value_or(""));
    if (launcher.step != nullptr)
      if (const auto step = variable(launcher.step)) place.run += "-" + plain(*step);
    if (place.launcher == "Slurm") read_share_of_slurm(variable, place);
    return std::optional(place);
  }
  // "trainer-2": the third of a StatefulSet.
  const auto host = variable("KUBERNETES_SERVICE_HOST") ? variable("HOSTNAME") : std::nullopt;
  const auto dash = host ? host->rfind('-') : std::string::npos;
  if (dash == std::string::npos) return std::optional<Place>();
  const auto number = number_in(std::string_view(*host).substr(dash + 1));
  if (!number) return std::optional<Place>();
  Place place;
  place.launcher = "a Kubernetes StatefulSet";
  place.rank = *number;
  place.run = plain(host->substr(0, dash));
  return std::optional(place);
}

}  // namespace troupe::cli
