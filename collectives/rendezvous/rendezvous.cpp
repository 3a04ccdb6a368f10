#include "collectives/rendezvous/rendezvous.hpp"

#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "collectives/group_facts.hpp"
#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

constexpr const char* kUrls = "use env://, tcp://HOST:PORT or file:///PATH";

ErrorInfo refused(std::string why, std::string todo) {
  return {ErrorCode::kBadConfig, "cannot initialise a process group", std::move(why), std::move(todo)};
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

using Query = std::map<std::string, std::string, std::less<>>;

Result<Query> read_query(std::string_view text) {
  Query query;
  while (!text.empty()) {
    const auto end = std::min(text.find('&'), text.size());
    const std::string_view pair = text.substr(0, end);
    const auto equals = pair.find('=');
    const std::string name(pair.substr(0, std::min(equals, pair.size())));
    if (equals == std::string_view::npos || (name != "rank" && name != "world_size" && name != "host") ||
        !query.emplace(name, pair.substr(equals + 1)).second) {
      return refused("the URL has the parameter '" + name + "', which is unknown, empty or there twice",
                     "the parameters are rank, world_size and, with file://, host");
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return query;
}

/// What launchers call a process's place, the first that is set wins.
constexpr std::array kRankNames = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
constexpr std::array kSizeNames = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
constexpr std::array kLocalNames = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                    "SLURM_LOCALID"};

/// A number that may be said in three places. `missing` gets the variable where nobody said it.
Result<int> read_number(int option, const char* parameter, const Query& query, const Environment* environment,
                        const std::array<const char*, 4>& names, std::vector<std::string>& missing) {
  if (option != -1) return option;
  if (const auto found = query.find(parameter); found != query.end()) {
    if (const auto value = number(found->second)) return *value;
    return refused("?" + std::string(parameter) + "= in the URL is no number", "write a decimal number");
  }
  if (environment != nullptr) {
    for (const char* name : names) {
      const char* text = (*environment)(name);
      if (text == nullptr) continue;
      if (const auto value = number(text)) return *value;
      return refused("the variable " + std::string(name) + " is '" + std::string(text).substr(0, 32) +
                         "', which is no number",
                     "set it to a decimal number");
    }
    missing.emplace_back(names.front());
  } else {
    missing.emplace_back(parameter);
  }
  return 0;
}

Result<void> read_master(Rendezvous& place, const Environment& environment,
                         std::vector<std::string>& missing) {
  const char* host = environment("MASTER_ADDR");
  const char* port = environment("TROUPE_MASTER_PORT");
  if (port == nullptr) port = environment("MASTER_PORT");
  if (host == nullptr || *host == '\0') missing.emplace_back("MASTER_ADDR");
  if (port == nullptr || *port == '\0') missing.emplace_back("MASTER_PORT");
  if (host == nullptr || *host == '\0' || port == nullptr || *port == '\0') return {};
  const std::string name = host;
  auto endpoint = parse_endpoint((is_ipv6(name) ? "[" + name + "]" : name) + ":" + port);
  if (!endpoint || endpoint->port == 0) {
    return refused("MASTER_ADDR and MASTER_PORT are no address: " +
                       (endpoint ? std::string("the port is 0") : endpoint.error().why),
                   "set them to rank 0's host and a free port, for example 127.0.0.1 and 29500");
  }
  place.at = *endpoint;
  return {};
}

Result<void> read_place(Rendezvous& place, std::string_view scheme, std::string_view rest,
                        const Query& query) {
  const auto host = query.find("host");
  if (scheme == "tcp") {
    auto endpoint = parse_endpoint(rest);
    if (!endpoint || endpoint->port == 0 || host != query.end()) {
      return refused(endpoint ? "a tcp:// URL has a port that is not 0 and no ?host=" : endpoint.error().why,
                     "write tcp://HOST:PORT, rank 0's host and a free port");
    }
    place.at = *endpoint;
    return {};
  }
  if (rest.size() < 2 || rest.front() != '/') {
    return refused("the path of a file:// URL is not absolute", "write file:///PATH, with three slashes");
  }
  place.path = rest;
  if (host != query.end()) place.at.host = host->second;
  return {};
}

}  // namespace

Result<Rendezvous> read_rendezvous(std::string_view url, int rank, int size, const Environment& environment) {
  const auto colon = url.find("://");
  const std::string_view scheme = url.substr(0, std::min(colon, url.size()));
  if (colon == std::string_view::npos || (scheme != "env" && scheme != "tcp" && scheme != "file")) {
    return refused("'" + std::string(url.substr(0, 64)) + "' is no URL to meet at", kUrls);
  }
  std::string_view rest = url.substr(colon + 3);
  const auto mark = rest.find('?');
  auto query = read_query(mark == std::string_view::npos ? std::string_view() : rest.substr(mark + 1));
  if (!query) return query.error();
  rest = rest.substr(0, mark);

  Rendezvous place;
  const bool from_environment = scheme == "env";
  std::vector<std::string> missing;
  const Environment* variables = from_environment ? &environment : nullptr;
  auto found_rank = read_number(rank, "rank", *query, variables, kRankNames, missing);
  if (!found_rank) return found_rank.error();
  auto found_size = read_number(size, "world_size", *query, variables, kSizeNames, missing);
  if (!found_size) return found_size.error();
  if (from_environment && (!rest.empty() || query->contains("host"))) {
    return refused("an env:// URL has no host or path", "write env://, and set MASTER_ADDR and MASTER_PORT");
  }
  const auto placed =
      from_environment ? read_master(place, environment, missing) : read_place(place, scheme, rest, *query);
  if (!placed) return placed.error();
  if (!missing.empty()) {
    if (from_environment) {
      return refused(listed(missing) + (missing.size() == 1 ? " is" : " are") + " not set",
                     "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does");
    }
    return refused(listed(missing) + (missing.size() == 1 ? " is" : " are") + " not given",
                   "set rank and size in the options, or append ?rank=R&world_size=N to the URL");
  }
  place.rank = *found_rank;
  place.size = *found_size;
  if (place.size < 1 || place.size > kMaxGroupRanks || place.rank < 0 || place.rank >= place.size) {
    return refused(
        "rank " + std::to_string(place.rank) + " of " + std::to_string(place.size) + " does not exist",
        "ranks count from 0 to size - 1, and a job has 1 to " + std::to_string(kMaxGroupRanks));
  }
  std::vector<std::string> ignored;
  if (auto local = read_number(-1, "", {}, &environment, kLocalNames, ignored); local && ignored.empty()) {
    place.local_rank = *local;
  }
  place.url = place.path.empty() ? "tcp://" + to_string(place.at) : "file://" + place.path;
  return place;
}

}  // namespace troupe::collectives
