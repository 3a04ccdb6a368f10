#include "collectives/native/cost_model.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace troupe::collectives {
namespace {

/// The most of its own that a rank copies for a one-shot operation.
constexpr double kOneShotBytes = 64 * 1024;

// What meetings and bytes take, as `bench_hosts --constants` and bench_all_reduce measured it. The same
// everywhere: a choice that is off by a factor costs a fraction of it, ranks that choose differently cost the
// group.
constexpr double kMeeting = 0.55;       // microseconds for each other rank of a host, until all have met
constexpr double kSwitch = 3;           // microseconds for the core of several ranks to take up the next
constexpr double kCopy = 6'500;         // bytes a microsecond, into a stage that another core has read
constexpr double kMove = 8'000;         // bytes a microsecond, between cores
constexpr double kMoveBetween = 2'000;  // bytes a microsecond, between hosts
constexpr double kHop = 10;             // microseconds from one host to another and into a rank that polls
constexpr double kFrame = 7;            // microseconds of a core to send a small frame and receive one

std::string to_string(const char* name, const Cost& cost) {
  char text[128];
  std::snprintf(text, sizeof text, "%s: %.1f us (%d meeting%s, %.0f B copied, %.0f B moved)", name,
                cost.microseconds, cost.meetings, cost.meetings == 1 ? "" : "s", cost.copied, cost.moved);
  return text;
}

/// Whether every receiver takes the same, so that it may be passed on.
bool can_disseminate(OpKind kind) {
  switch (kind) {
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterV:
    case OpKind::kAllToAll:
      return false;
    default:
      return true;
  }
}

/// A meeting of all hosts, each with a frame for every other.
double direct_meeting(const Shape& shape) {
  const auto others = static_cast<double>(shape.hosts - 1);
  return kHop + others / static_cast<double>(shape.members) * kFrame;
}

double dissemination(const Shape& shape) {
  const auto steps = std::bit_width(static_cast<unsigned>(shape.hosts - 1));
  return static_cast<double>(steps) * (kHop + kFrame);
}

}  // namespace

Choice choose_algorithm(const Op& op, const Shape& shape) {
  const bool between = shape.hosts > 1;
  // Counts are of ranks, whose largest part counts, or of the calls that a batch made one, which all count.
  const bool has_parts = !op.counts.empty() && op.kind != OpKind::kAllReduce;
  const std::size_t count = has_parts ? *std::max_element(op.counts.begin(), op.counts.end()) : op.count;
  const double bytes = static_cast<double>(count) * static_cast<double>(element_size(op.dtype));
  const double others = shape.ranks - 1, other_hosts = shape.hosts - 1;
  double copied = bytes, one_shot = others * bytes, exchange = one_shot;
  Choice choice;
  switch (op.kind) {
    case OpKind::kAllReduceTree:  // lies in the region, and its results go there
      return choice;
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      if (between) one_shot = other_hosts * static_cast<double>(shape.nodes) * bytes;
      exchange = between ? 2 * one_shot / shape.hosts : 2 * one_shot / shape.ranks;
      break;
    case OpKind::kBroadcast:
      one_shot = exchange = bytes;
      break;
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterV:
    case OpKind::kAllToAll:
      copied = others * bytes;
      break;
    case OpKind::kAllToAllV:  // its parts go as messages
    case OpKind::kBarrier:
      copied = one_shot = exchange = 0;
      break;
    default:
      break;
  }
  const double direct = between ? direct_meeting(shape) : 0;
  const double passed_on = between && can_disseminate(op.kind) ? dissemination(shape) : direct;
  // With more ranks than cores a core does the work of several, and meets by turning to each.
  const double turns = shape.cores > 0 ? std::max(1.0, static_cast<double>(shape.ranks) / shape.cores) : 1;
  const double meeting = turns > 1
                             ? kSwitch * turns
                             : kMeeting * std::max(0.0, static_cast<double>(shape.ranks) / shape.hosts - 1);
  const auto cost = [&](int meetings, double copies, double moves, double once) {
    return Cost{.meetings = meetings,
                .copied = copies,
                .moved = moves,
                .microseconds = meetings * meeting +
                                turns * (copies / kCopy + moves / (between ? kMoveBetween : kMove)) + once};
  };
  choice.one_shot = cost(1, copied, one_shot, std::min(direct, passed_on));
  choice.exchange = cost(2, 0, exchange, 2 * direct);
  if (copied <= kOneShotBytes && choice.one_shot.microseconds < choice.exchange.microseconds) {
    choice.algorithm = Algorithm::kOneShot;
    if (passed_on < direct) choice.route = Route::kDisseminate;
  } else if (op.kind == OpKind::kBroadcast && between) {
    choice.route = Route::kChain;
  }
  return choice;
}

std::string to_string(const Choice& choice) {
  const std::string one_shot = to_string("one-shot", choice.one_shot);
  const std::string exchange = to_string("exchange", choice.exchange);
  if (choice.one_shot.meetings == 0) return "exchange: nothing else does it";
  std::string both =
      choice.algorithm == Algorithm::kOneShot ? one_shot + "; " + exchange : exchange + "; " + one_shot;
  if (choice.route == Route::kDirect) return both;
  return both +
         (choice.route == Route::kChain ? "; along a chain of hosts" : "; passed on from host to host");
}

}  // namespace troupe::collectives
