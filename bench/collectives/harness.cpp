#include "bench/collectives/harness.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "bench/collectives/measurement.hpp"

namespace bench {
namespace {

constexpr const char* kHelp =
    R"(
  --ops LIST     of all_reduce, broadcast, reduce_scatter, all_gather, all_to_all; default %s
  --sizes LIST   bytes of a rank's larger buffer, default %s
  --ranks LIST   numbers of processes, default 2,4
  --over LIST    of memory (one machine) and tcp (two: network namespaces joined by a veth pair, half of the
                 ranks in each; needs root); default memory
  --rate RATE    slow the wire between the two down, as tc writes it: 10gbit
  --offsets LIST bytes behind a page's begin at which private buffers lie, up to 3; default 0,16,2048 (malloc
                 gives 16 for large ones)
  --quantile Q   show the time that a share Q of the calls stays below and not the median; low on a machine
                 where others take the cores
  --rounds N     turns that each contender gets, default 9 (the first warms up and is not counted)
  --json FILE    also write one JSON object a line
  --help         this text

Ranks are bound to a core each where there are as many cores, as mpirun does it for its own.
Contenders take turns in one run (A B A B ...); a time is that of the slowest process of a call, and medians are
shown unless --quantile is given. Buffers are written anew before every call, which is not timed, and every result is checked.

  ours      on memory that the group allocated; all_reduce as all_reduce_tree, as the reducer uses it
  private   on each process's own buffers, at each offset
  Gloo      TCP on the loopback, the best of what it has for the operation
  OpenMPI   shared memory; all_reduce in place
  memcpy    a copy of the larger buffer in every process at once, as a reference
  wire      over tcp: the bytes that have to cross it, both ways at once over one connection, and nothing else
)";

struct Options {
  std::vector<Op> ops;
  std::vector<std::size_t> sizes;
  std::vector<int> ranks{2, 4};
  std::vector<bool> over_tcp{false};
  std::string rate;
  std::vector<std::size_t> offsets{0, 16, 2048};
  double quantile = 0.5;
  int rounds = 9;
  std::string json;
};

constexpr Op kAllOps[] = {Op::kAllReduce, Op::kBroadcast, Op::kReduceScatter, Op::kAllGather, Op::kAllToAll};

std::string program_name;  ///< for messages

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "%s: %s (see --help)\n", program_name.c_str(), what.c_str());
  std::exit(2);
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (true) {
    const auto comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

std::size_t parse_number(const std::string& text, const std::map<std::string, std::size_t>& units,
                         std::size_t most) {
  char* end = nullptr;
  const auto value = std::strtoull(text.c_str(), &end, 10);
  const auto unit = units.find(end);
  if (end == text.c_str() || unit == units.end() || value == 0 || value > most / unit->second) {
    usage_error("'" + text + "' is not a value for this flag");
  }
  return value * unit->second;
}

std::string size_name(std::size_t bytes) {
  if (bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes % 1024 == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

template <class List, class Name>
std::string joined(const List& list, Name name) {
  std::string all;
  for (const auto& one : list) {
    if (!all.empty()) all += ',';
    all += name(one);
  }
  return all;
}

[[noreturn]] void help(const Program& program) {
  std::printf("%s: %s, ours against Gloo and OpenMPI.\n", program.name, program.about);
  const auto size = [](std::size_t bytes) {
    std::string name = size_name(bytes);
    return name.erase(name.find(' '), 1);
  };
  std::printf(kHelp, joined(program.ops, op_name).c_str(), joined(program.sizes, size).c_str());
  std::exit(0);
}

Op parse_op(const std::string& text) {
  for (const Op op : kAllOps) {
    if (text == op_name(op)) return op;
  }
  usage_error("'" + text + "' is not an operation");
}

void set(Options& options, const std::string& flag, const std::string& value) {
  if (flag == "--ops") {
    options.ops.clear();
    for (const auto& part : split(value)) options.ops.push_back(parse_op(part));
  } else if (flag == "--sizes") {
    options.sizes.clear();
    for (const auto& part : split(value)) {
      options.sizes.push_back(parse_number(
          part, {{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}, std::size_t{4} << 30));
    }
  } else if (flag == "--ranks") {
    options.ranks.clear();
    for (const auto& part : split(value)) {
      options.ranks.push_back(static_cast<int>(parse_number(part, {{"", 1}}, kMaxRanks)));
    }
  } else if (flag == "--over") {
    options.over_tcp.clear();
    for (const auto& part : split(value)) {
      if (part != "memory" && part != "tcp") usage_error("'" + part + "' is neither memory nor tcp");
      options.over_tcp.push_back(part == "tcp");
    }
  } else if (flag == "--rate") {
    if (value.empty() || value.find_first_not_of("0123456789.abgikmpst") != std::string::npos) {
      usage_error("'" + value + "' is not a rate, such as 10gbit");
    }
    options.rate = value;
  } else if (flag == "--offsets") {
    options.offsets.clear();
    for (const auto& part : split(value)) {
      // A page further is the same place, so that 0 is what is left of it.
      const std::size_t offset = part == "0" ? 0 : parse_number(part, {{"", 1}, {"KiB", 1 << 10}}, 4095);
      if (offset % sizeof(float) != 0) usage_error("no float lies at '" + part + "'");
      options.offsets.push_back(offset);
    }
    if (options.offsets.size() > kMostOffsets) usage_error("more than 3 offsets");
  } else if (flag == "--quantile") {
    char* end = nullptr;
    options.quantile = std::strtod(value.c_str(), &end);
    if (*end != '\0' || !(options.quantile >= 0 && options.quantile < 1)) {
      usage_error("'" + value + "' is not in [0, 1)");
    }
  } else if (flag == "--rounds") {
    options.rounds = static_cast<int>(parse_number(value, {{"", 1}}, 40));
  } else if (flag == "--json") {
    options.json = value;
  } else {
    usage_error("unknown flag '" + flag + "'");
  }
}

Options parse(const Program& program, int argc, char** argv) {
  Options options{.ops = program.ops, .sizes = program.sizes};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") help(program);
    if (i + 1 == argc) usage_error(flag + " is unknown or needs a value");
    set(options, flag, argv[++i]);
  }
  return options;
}

void report(const Options& options, const Measurement& measured, Op op, const std::string& name,
            std::FILE* json) {
  struct Line {
    Contender ours;
    Contender peer;
    const char* peer_name;
    std::string where;
  };
  std::vector<Line> lines{{kOurs, kGloo, "Gloo", ""},
                          {kOurs, kMpi, "OpenMPI", ""},
                          {kOurs, kCopy, "memcpy", ""},
                          {kOurs, kWire, "wire", ""}};
  for (std::size_t i = 0; i < options.offsets.size(); ++i) {
    const std::string where = " private +" + std::to_string(options.offsets[i]);
    lines.push_back({on_private(i), kGloo, "Gloo", where});
    lines.push_back({on_private(i), kMpi, "OpenMPI", where});
  }
  const auto time = [&](Contender who) { return measured.quantile_ms(who, options.quantile); };
  std::printf("%-14s %-12s ours %9.4f ms\n", op_name(op), name.c_str(), time(kOurs));
  for (const Line& line : lines) {
    if (!measured.has(line.ours) || !measured.has(line.peer)) continue;
    const double mine = time(line.ours), theirs = time(line.peer);
    if (!std::isfinite(theirs)) {
      std::printf("  %-8s too slow to be measured\n", line.peer_name);
      continue;
    }
    std::printf("  %-8s %9.4f ms  %6.2fx%s\n", line.peer_name, theirs, theirs / mine,
                line.where.empty() ? "" : (line.where + ", ours " + std::to_string(mine) + " ms").c_str());
    if (json == nullptr) continue;
    std::fprintf(json,
                 "{\"bench\":\"%s\",\"case\":\"%s%s\",\"ours\":%.6f,\"peer\":%.6f,\"peer_name\":\"%s\","
                 "\"ratio\":%.3f,\"unit\":\"ms\"}\n",
                 op_name(op), name.c_str(), line.where.c_str(), mine, theirs, line.peer_name, theirs / mine);
  }
  std::fflush(stdout);
  if (json != nullptr) std::fflush(json);
}

struct Case {
  Op op;
  std::size_t bytes;
  int ranks;
  bool over_tcp;
};

/// Measures one case and reports it; false, with the reason printed, if there is no result.
bool measure(const Options& options, const Case& one, std::FILE* json) {
  const std::string name =
      size_name(one.bytes) + " n=" + std::to_string(one.ranks) + (one.over_tcp ? " tcp" : "");
  try {
    std::optional<Machines> machines;
    if (one.over_tcp) machines.emplace(options.rate);
    Measurement measurement(one.op, one.bytes, one.ranks, options.offsets, machines ? &*machines : nullptr);
    if (measurement.run(options.rounds)) {
      report(options, measurement, one.op, name, json);
      return true;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", program_name.c_str(), e.what());
  }
  std::fprintf(stderr, "%s: no result for %s %s\n", program_name.c_str(), op_name(one.op), name.c_str());
  return false;
}

}  // namespace

int run_benchmark(const Program& program, int argc, char** argv) {
  program_name = program.name;
  const Options options = parse(program, argc, argv);
  for (const std::string& skipped : skipped_peers()) std::printf("skipped %s\n", skipped.c_str());
  std::FILE* json = nullptr;
  if (!options.json.empty() && (json = std::fopen(options.json.c_str(), "w")) == nullptr) {
    std::perror((program_name + ": cannot write " + options.json).c_str());
    return 1;
  }
  bool good = true;
  for (const bool over_tcp : options.over_tcp) {
    for (const Op op : options.ops) {
      for (const int ranks : options.ranks) {
        for (const std::size_t bytes : options.sizes) {
          good = measure(options, {op, bytes, ranks, over_tcp}, json) && good;
        }
      }
    }
  }
  if (json != nullptr && std::fclose(json) != 0) good = false;
  return good ? 0 : 1;
}

}  // namespace bench
