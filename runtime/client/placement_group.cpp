#include "runtime/client/placement_group.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "runtime/client/group_options.hpp"
#include "runtime/client/session.hpp"
#include "runtime/core/names.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {
namespace {

constexpr Duration kGroupAnswers = std::chrono::seconds(30);
constexpr Duration kLook = std::chrono::milliseconds(100);
constexpr const char* kInLightActor = "spawn the actor with .isolated = true";

std::shared_ptr<CallState> ask(ProcessGate* process, cluster::GroupVerb verb, GroupId group,
                               cluster::GroupSpec spec = {}) {
  auto asked = process == nullptr ? nullptr : process->group(verb, group, std::move(spec));
  if (asked == nullptr)
    throw BadConfig("cannot ask about a placement group", "the handle is none: it was default-constructed",
                    "use what Session::placement_group gave");
  return asked;
}

cluster::GroupStatus answer_of(const std::shared_ptr<CallState>& asked) {
  return Future<wire::GroupAnswer>(asked).get(kGroupAnswers).status;
}

/// Its name, if it has one and the head can be asked.
std::string name_of(const PlacementGroup& group, ProcessGate* process, bool head_answers) {
  if (!head_answers) return to_string(group.id());
  const auto asked = ask(process, cluster::GroupVerb::kShow, group.id());
  if (!asked->wait(kGroupAnswers) || !asked->outcome().ok()) return to_string(group.id());
  const auto answer = wire::decode<wire::GroupAnswer>(*asked->outcome());
  const std::string name = answer ? answer->status.record.spec.name : std::string();
  return name.empty() ? to_string(group.id()) : name;
}

/// In 1/10000. Throws BadConfig.
std::int64_t counted(double number, std::size_t bundle, const char* what, double most, bool whole_above_1) {
  const auto e4 = std::llround(number * cluster::kCpu);
  if (number >= 0 && number <= most && (number == 0 || e4 > 0) &&  // a NaN is refused, too
      (!whole_above_1 || number <= 1 || number == std::floor(number)))
    return e4;
  std::ostringstream text;
  text << number;
  throw BadConfig("cannot make a placement group",
                  "bundle " + std::to_string(bundle) + " has " + what + " = " + text.str(),
                  whole_above_1 ? "ask for a part of one GPU, or for 0 to 1,024 whole ones"
                                : "ask for 0, or for 0.0001 to 100,000 CPUs");
}

}  // namespace

Future<void> PlacementGroup::ready() const {
  return Future<void>(ask(process_, cluster::GroupVerb::kAwait, id_), process_);
}

void PlacementGroup::wait(Duration timeout) const {
  detail::check_may_block("PlacementGroup::wait",
                          "co_await ready(), or spawn the actor with .isolated = true");
  const auto asked = ask(process_, cluster::GroupVerb::kAwait, id_);
  // A look at it takes a question to the head, too.
  if (asked->wait(std::max(timeout, kLook))) {
    asked->outcome().value();
    return;
  }
  const std::string why = asked->waits_for();
  asked->cancel(detail::not_wanted());
  throw Timeout({ErrorCode::kTimeout,
                 "placement group " + name_of(*this, process_, !why.empty()) + " is not ready",
                 why.empty() ? "the head did not answer" : why,
                 "free or add what it asks for, wait again, or remove() it"});
}

PlacementGroupState PlacementGroup::state() const {
  detail::check_may_block("PlacementGroup::state", kInLightActor);
  const cluster::GroupStatus status = answer_of(ask(process_, cluster::GroupVerb::kShow, id_));
  PlacementGroupState state{status.record.state == cluster::GroupState::kReady,
                            status.record.state == cluster::GroupState::kEnding,
                            {},
                            status.record.generation,
                            status.reason};
  for (const auto& bundle : status.record.placed) state.nodes.push_back(bundle.node);
  return state;
}

void PlacementGroup::remove() const {
  detail::check_may_block("PlacementGroup::remove", kInLightActor);
  answer_of(ask(process_, cluster::GroupVerb::kRemove, id_));
}

PlacementGroup Session::placement_group(const std::vector<Bundle>& bundles,
                                        const PlacementGroupOptions& options) const {
  detail::check_may_block("Session::placement_group", kInLightActor);
  constexpr const char* kTodo =
      "give each bundle CPUs, GPUs, memory or custom resources: {{.num_cpus = 1}, {.num_cpus = 1}}";
  if (bundles.empty()) throw BadConfig("cannot make a placement group", "it has no bundles", kTodo);
  if (options.strategy > troupe_last(options.strategy))
    throw BadConfig("cannot make a placement group",
                    "there is no strategy " + std::to_string(static_cast<int>(options.strategy)),
                    "use kPack, kSpread, kStrictPack or kStrictSpread");
  if (auto wrong = check_name(options.name, "cannot make a placement group")) throw_error(*std::move(wrong));
  cluster::GroupSpec spec{{}, options.name, options.strategy, {}};
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    spec.bundles.push_back(
        {counted(bundles[i].num_cpus, i, "num_cpus", 100'000, false),
         counted(bundles[i].num_gpus, i, "num_gpus", 1024, true),
         cluster::other_resources(bundles[i].memory, bundles[i].resources, bundles[i].labels)});
    const cluster::BundleDemand& bundle = spec.bundles.back();
    if (std::string wrong = cluster::wrong_about(bundle.other); !wrong.empty())
      throw BadConfig("cannot make a placement group", "bundle " + std::to_string(i) + ": " + wrong,
                      detail::kOtherOptions);
    if (bundle.cpu_e4 == 0 && bundle.gpu_e4 == 0 && bundle.other.amounts.empty())
      throw BadConfig("cannot make a placement group", "bundle " + std::to_string(i) + ": it is empty",
                      kTodo);
  }
  const auto asked = ask(&process(), cluster::GroupVerb::kMake, {}, std::move(spec));
  // A group that is made later would hold its room, known to nobody.
  if (!asked->wait(kGroupAnswers))
    asked->cancel({ErrorCode::kTimeout, "cannot make a placement group",
                   "the head did not answer within 30 s", "see whether the head runs, and make it again"});
  return {process_, answer_of(asked).record.group};
}

PlacementGroup Session::find_placement_group(const std::string& name) const {
  detail::check_may_block("Session::find_placement_group", kInLightActor);
  cluster::GroupSpec spec;
  spec.name = name;
  const auto found = answer_of(ask(&process(), cluster::GroupVerb::kShow, {}, std::move(spec)));
  return {process_, found.record.group};
}

}  // namespace troupe
