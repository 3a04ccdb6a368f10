#include "bench/tune/replay.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <istream>
#include <ostream>
#include <stdexcept>

#include "actors/tune/scheduler.hpp"
#include "bench/tune/trace_json.hpp"
#include "runtime/core/error.hpp"

namespace troupe::tune {
namespace {

/// The numbers that a trace's generators gave.
class RecordedDraws final : public Draws {
 public:
  void push(const Json& draws) {
    for (const auto& draw : draws) waiting_.push_back(draw);
  }
  void push_uniform(const Json& u) { waiting_.push_back(Json::array({"random", u})); }
  bool empty() const { return waiting_.empty(); }

  double uniform() override { return take("random")[1].get<double>(); }
  std::size_t choice(std::size_t count) override {
    const Json draw = take("choice");
    if (draw[1] != count)
      throw std::runtime_error("drew one of " + std::to_string(count) + ", recorded is " + draw.dump());
    return draw[2].get<std::size_t>();
  }
  Value sample(const Parameter& parameter) override {
    const Json draw = take(!waiting_.empty() && waiting_.front()[0] == "function" ? "function" : "sample");
    if (!parameter.name.ends_with(draw[1].get<std::string>())) {
      throw std::runtime_error("drew " + parameter.name + ", recorded is " + draw.dump());
    }
    return value_of(draw[2]);
  }

 private:
  Json take(const char* kind) {
    if (waiting_.empty()) throw std::runtime_error(std::string("drew a ") + kind + ", recorded is no draw");
    Json draw = waiting_.front();
    waiting_.pop_front();
    if (draw[0] != kind)
      throw std::runtime_error(std::string("drew a ") + kind + ", recorded is " + draw.dump());
    return draw;
  }
  std::deque<Json> waiting_;
};

/// Ray's lists are shifted, all of its domains multiplied.
void add_mutations(const Json& mutations, const std::string& prefix, std::vector<Parameter>& into) {
  for (const auto& [key, domain] : mutations.items()) {
    if (domain[0] == "dict") {
      add_mutations(domain[1], prefix + key + ".", into);
      continue;
    }
    Parameter parameter{prefix + key, {}};
    if (domain[0] == "list") {
      parameter.domain.kind = Domain::Kind::kChoice;
      for (const auto& value : domain[1]) parameter.domain.values.push_back(value_of(value));
    }
    into.push_back(std::move(parameter));
  }
}

/// "lr = min(max(lr, 1e-4), 1e-1); momentum = round(1 - lr, 6 digits)", the only one that was recorded.
Config explore_as_recorded(Config config) {
  const double lr = std::min(std::max(number_of(*config.find("lr")), 1e-4), 1e-1);
  config.set("lr", lr);
  char digits[64];
  std::snprintf(digits, sizeof digits, "%.6f", 1 - lr);
  config.set("momentum", std::strtod(digits, nullptr));
  return config;
}

std::optional<int> resource(const Json& value) {
  return value == "auto" ? std::nullopt : std::optional<int>(value.get<int>());
}

std::optional<AnyScheduler> pruner_of(const std::string& name, const Json& header, const Json& c) {
  if (name == "optuna.pruners.MedianPruner") {
    return MedianPruner{c["n_startup_trials"], c["n_warmup_steps"], c["interval_steps"], c["n_min_trials"]};
  }
  if (name == "optuna.pruners.PercentilePruner") {
    return PercentilePruner{c["percentile"], c["n_startup_trials"], c["n_warmup_steps"], c["interval_steps"],
                            c["n_min_trials"]};
  }
  if (name == "optuna.pruners.SuccessiveHalvingPruner") {
    return SuccessiveHalvingPruner{resource(c["min_resource"]), c["reduction_factor"],
                                   c["min_early_stopping_rate"], c["bootstrap_count"]};
  }
  if (name == "optuna.pruners.HyperbandPruner") {
    return HyperbandPruner{c["min_resource"], resource(c["max_resource"]), c["reduction_factor"],
                           c["bootstrap_count"], header["study_name"]};
  }
  return std::nullopt;
}

std::optional<AnyScheduler> scheduler_of(const Json& header) {
  const Json& c = header["config"];
  const std::string family = header["family"];
  if (family == "asha")
    return Asha{c["max_t"], c["grace_period"], c["reduction_factor"], c["brackets"], c["stop_last_trials"]};
  if (family == "hyperband") return HyperBand{c["max_t"], c["reduction_factor"], c["stop_last_trials"]};
  if (family == "median")
    return MedianStopping{c["grace_period"], c["min_samples_required"], c["min_time_slice"], c["hard_stop"]};
  if (family == "optuna_pruner") return pruner_of(header["class"], header, c);
  if (family != "pbt") return std::nullopt;
  Pbt pbt{c["perturbation_interval"], c["burn_in_period"], c["quantile_fraction"], c["resample_probability"],
          c["perturbation_factors"].get<std::vector<double>>()};
  if (!c["custom_explore_fn"].is_null()) pbt.custom_explore = explore_as_recorded;
  std::vector<Parameter> mutated;
  add_mutations(c["hyperparam_mutations"], "", mutated);
  for (const Parameter& each : mutated) pbt.mutations.push_back(Mutation(each.name));
  pbt.require_attrs = c["require_attrs"];
  pbt.synch = c["synch"];
  return pbt;
}

/// What a trace says of an event, in the form of ours().
Json theirs(const Json& event) {
  Json said = Json::object();
  const std::string kind = event["event"];
  if (kind == "choose") said["run"] = event["trial"];
  if (kind == "choose" && event.contains("restored")) said["from"] = event["restored"];
  if (event.contains("decision")) said["decision"] = event["decision"];
  if (kind == "add" && event.contains("bracket")) said["bracket"] = event["bracket"];
  if (kind == "add" && event.contains("config")) said["config"] = json_of(config_of(event["config"]));
  const Json why = event.contains("why") ? event["why"] : Json();
  if (!why.is_object()) return said;
  for (const char* key : {"rung", "n", "cutoff", "samples", "median", "best", "cut", "until", "halves"}) {
    if (why.contains(key) && !why[key].is_null()) said[key] = json_of(number(why[key]));
  }
  if (why.contains("stopped")) said["stopped"] = why["stopped"];
  if (why.contains("rungs") && why["rungs"].back().size() == 4) {
    const Json& last = why["rungs"].back();
    said["rung"] = json_of(number(last[0])), said["n"] = json_of(number(last[1])),
    said["cut"] = json_of(number(last[2]));
  }
  if (!why.contains("steps")) return said;
  said["saved"] = Json::array(), said["exploits"] = Json::array();
  for (const auto& step : why["steps"]) {
    if (step.contains("save"))
      said["saved"].push_back(step["trial"]);
    else if (step["exploit"] == true)
      said["exploits"].push_back({step["trial"], step["from"], json_of(config_of(step["new"]))});
  }
  return said;
}

/// Our decision, with the parts that the trace speaks of.
Json ours(const Decision& decision, const Json& recorded) {
  static constexpr const char* kActions[] = {"CONTINUE", "PAUSE", "STOP", "NOOP"};
  const auto figure = [&](std::string_view name) {
    for (const auto& [key, value] : decision.figures) {
      if (key == name) return json_of(value);
    }
    return Json();
  };
  Json said = Json::object();
  for (const auto& [key, value] : recorded.items()) {
    if (key == "run")
      said[key] = decision.run ? Json(*decision.run) : Json();
    else if (key == "decision")
      said[key] = kActions[static_cast<int>(decision.action)];
    else if (key == "config")
      said[key] = decision.config ? json_of(*decision.config) : value;
    else if (key == "stopped")
      said[key] = decision.stop;
    else if (key == "saved")
      said[key] = decision.save;
    else if (key == "from")
      said[key] = figure("from_t").is_null() ? Json() : Json::array({figure("from_trial"), figure("from_t")});
    else if (key == "bracket")
      said[key] = value.is_array() ? Json::array({figure("band"), figure("bracket")}) : figure("bracket");
    else if (key != "exploits")
      said[key] = figure(key);
  }
  if (!recorded.contains("stopped") && !decision.stop.empty()) said["stopped"] = decision.stop;
  if (recorded.contains("exploits") || !decision.exploits.empty()) {
    said["exploits"] = Json::array();
    for (const auto& each : decision.exploits)
      said["exploits"].push_back({each.trial, each.donor, json_of(each.config)});
  }
  return said;
}

Event event_of(const Json& event, const Json& header) {
  const std::string kind = event["event"];
  if (kind == "choose") return Choose{};
  const int trial = event["trial"];
  if (kind == "add") {
    Added added{trial, event.contains("given")    ? config_of(event["given"])
                       : event.contains("config") ? config_of(event["config"])
                                                  : Config{}};
    if (header.contains("never_saves")) {
      for (const auto& each : header["never_saves"]) added.saves = added.saves && each != trial;
    }
    return added;
  }
  if (kind == "result") return Reported{trial, optional_number(event, "t"), optional_number(event, "metric")};
  if (kind == "error") return Failed{trial, event["retry"]};
  if (event.contains("state") && event["state"] == "FAIL") return Failed{trial};
  if (kind == "complete" || kind == "pruned") {
    return Completed{trial, optional_number(event, "t"), optional_number(event, "metric"),
                     event.contains("state") && event["state"] == "PRUNED"};
  }
  throw std::runtime_error("an event that this program does not know: " + kind);
}

void push_draws(const Json& event, RecordedDraws& draws) {
  if (event.contains("u")) draws.push_uniform(event["u"]);
  if (event.contains("draws")) draws.push(event["draws"]);
  if (!event.contains("why") || !event["why"].is_object() || !event["why"].contains("steps")) return;
  for (const auto& step : event["why"]["steps"]) {
    if (step.contains("draws")) draws.push(step["draws"]);
  }
}

/// Whether the decision on one event is the recorded one.
bool step(Scheduler& scheduler, const Json& event, const Json& header, RecordedDraws& draws,
          std::ostream& out) {
  push_draws(event, draws);
  const Json recorded = theirs(event);
  Json decided;
  std::string reason;
  try {
    const Decision decision = scheduler.step(event_of(event, header));
    decided = ours(decision, recorded);
    reason = decision.reason;
    if (!draws.empty()) throw std::runtime_error("more draws are recorded than were made");
  } catch (const Error& error) {
    decided = {{"decision", "raises RuntimeError"}};
    reason = error.what();
  } catch (const std::exception& error) {
    decided = {{"failed", error.what()}};
  }
  out << event["event"].get<std::string>();
  if (event["event"] != "choose") out << " trial " << event["trial"];
  if (event.contains("t")) out << " t " << event["t"] << " metric " << event.value("metric", Json());
  out << ": " << decided.dump() << (reason.empty() ? "" : "  # ") << reason << "\n";
  if (decided == recorded) return true;
  out << "differs: ours     " << decided.dump() << "\n         recorded " << recorded.dump() << "\n";
  return false;
}

}  // namespace

Replayed replay(std::istream& trace, std::ostream& out) {
  std::string line;
  std::getline(trace, line);
  const Json header = Json::parse(line);
  if (header["family"] == "tpe") return replay_tpe(line, trace, out);
  const auto options = scheduler_of(header);
  if (!options) {
    out << header["class"].get<std::string>() << " is not here\n";
    return Replayed::kNotThere;
  }
  SchedulerContext context;
  const Json& c = header["config"];
  const std::string mode = header.contains("direction") ? header["direction"] : c["mode"];
  context.mode = mode.starts_with("max") ? Mode::kMax : Mode::kMin;
  if (c.contains("hyperparam_mutations")) add_mutations(c["hyperparam_mutations"], "", context.parameters);
  const auto draws = std::make_shared<RecordedDraws>();
  const auto scheduler = make_scheduler(*options, std::move(context), draws);
  while (std::getline(trace, line)) {
    const Json event = Json::parse(line);
    if (event["event"] == "end") return Replayed::kSame;
    if (header["family"] == "hyperband" && event.contains("metric") && event["metric"] == "nan") {
      out << "NaN is the worst metric here; there it sorts anywhere, and so does what follows\n";
      return Replayed::kNotThere;
    }
    if (!step(*scheduler, event, header, *draws, out)) return Replayed::kDiffers;
  }
  out << "the trace ends without an end\n";
  return Replayed::kDiffers;
}

}  // namespace troupe::tune
