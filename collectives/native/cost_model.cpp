#include "collectives/native/cost_model.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe::collectives {
namespace {

/// What meetings and bytes take. Orders of magnitude, and the same everywhere: a choice that is off by a
/// factor costs a fraction of a microsecond, ranks that choose differently cost the group.
struct Speeds {
  double meeting = 0;  ///< microseconds until every rank has seen every other
  double copy = 0;     ///< bytes a microsecond, within a core
  double move = 0;     ///< bytes a microsecond, between cores or machines
};

Speeds speeds_of(int ranks, bool one_machine) {
  if (one_machine) return {.meeting = 0.3 * ranks, .copy = 20'000, .move = 8'000};
  return {.meeting = 25, .copy = 20'000, .move = 2'000};
}

Cost cost_of(int meetings, double copied, double moved, const Speeds& speeds) {
  return {.meetings = meetings,
          .copied = copied,
          .moved = moved,
          .microseconds = meetings * speeds.meeting + copied / speeds.copy + moved / speeds.move};
}

std::string to_string(const char* name, const Cost& cost) {
  char text[128];
  std::snprintf(text, sizeof text, "%s: %.1f us (%d meeting%s, %.0f B copied, %.0f B moved)", name,
                cost.microseconds, cost.meetings, cost.meetings == 1 ? "" : "s", cost.copied, cost.moved);
  return text;
}

}  // namespace

Choice choose_algorithm(const Op& op, int ranks, bool one_machine) {
  const Speeds speeds = speeds_of(ranks, one_machine);
  const double others = ranks - 1;
  const double largest =
      op.counts.empty() ? 0 : static_cast<double>(*std::max_element(op.counts.begin(), op.counts.end()));
  const double bytes = op.counts.empty() ? static_cast<double>(op.bytes())
                                         : largest * static_cast<double>(element_size(op.dtype));
  double copied = bytes, one_shot = others * bytes, exchange = one_shot;
  switch (op.kind) {
    case OpKind::kAllReduceTree:  // lies in the region, and its results go there
      return {};
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      exchange = 2 * one_shot / ranks;
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
  Choice choice{.one_shot = cost_of(1, copied, one_shot, speeds),
                .exchange = cost_of(2, 0, exchange, speeds)};
  // What comes unasked from another machine is small.
  const bool small = copied <= static_cast<double>(kEagerPartials);
  if (small && choice.one_shot.microseconds < choice.exchange.microseconds) {
    choice.algorithm = Algorithm::kOneShot;
  }
  return choice;
}

std::string to_string(const Choice& choice) {
  const std::string one_shot = to_string("one-shot", choice.one_shot);
  const std::string exchange = to_string("exchange", choice.exchange);
  if (choice.one_shot.meetings == 0) return "exchange: nothing else does it";
  return choice.algorithm == Algorithm::kOneShot ? one_shot + "; " + exchange : exchange + "; " + one_shot;
}

}  // namespace troupe::collectives
