// Suggestions of Optuna's TPESampler, made again.
#include <cmath>
#include <istream>
#include <ostream>
#include <random>

#include "actors/tune/search.hpp"
#include "bench/tune/replay.hpp"
#include "bench/tune/trace_json.hpp"

namespace troupe::tune {
namespace {

/// numpy.random.RandomState(seed): MT19937, a double of 53 bits from two outputs.
class NumpyRandom final : public Random {
 public:
  explicit NumpyRandom(std::uint32_t seed) : twister_(seed) {}
  std::uint64_t next() override {
    const std::uint64_t high = twister_() >> 5;
    const std::uint64_t low = twister_() >> 6;
    return ((high << 26) | low) << 11;
  }

 private:
  std::mt19937 twister_;
};

Parameter parameter_of(const std::string& name, const Json& described) {
  using Kind = Domain::Kind;
  Parameter parameter{name, {}};
  Domain& domain = parameter.domain;
  if (described[0] == "categorical") {
    domain.kind = Kind::kChoice;
    for (const auto& value : described[1]) domain.values.push_back(value_of(value));
    return parameter;
  }
  const bool is_whole = described[0] == "int";
  domain = {is_whole ? Kind::kInteger : Kind::kUniform, number(described[1]), number(described[2]),
            is_whole ? 1.0 : 0.0};
  for (std::size_t i = 3; i < described.size(); ++i) {
    if (described[i] == "log") domain.kind = is_whole ? Kind::kLogInteger : Kind::kLogUniform;
    if (described[i] == "step") domain.step = number(described[i + 1]);
  }
  return parameter;
}

bool agree(const Value& ours, const Value& recorded) {
  if (std::holds_alternative<std::string>(ours)) return ours == recorded;
  const double a = number_of(ours);
  const double b = number_of(recorded);
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

/// The least lead of a choice over the next best candidate: below 1e-9 either may be taken.
double least_gap(const Json& event) {
  double least = 1;
  if (!event.contains("why")) return least;
  for (const auto& [names, chosen] : event["why"].items()) least = std::min(least, number(chosen[1]));
  return least;
}

class TpeReplay {
 public:
  TpeReplay(const Json& header, std::ostream& out) : out_(out) {
    const Json& c = header["config"];
    for (const auto& [name, described] : header["space"].items())
      parameters_.push_back(parameter_of(name, described));
    Tpe options{c["n_startup_trials"], c["n_ei_candidates"]};
    options.multivariate = c["multivariate"].is_null() || c["multivariate"] == true;
    options.group = c["group"];
    options.constant_liar = c["constant_liar"];
    const auto mode = header["direction"] == "maximize" ? Mode::kMax : Mode::kMin;
    const auto seed = c["seed"].get<std::uint32_t>();
    search_ = make_tpe(options, parameters_, mode, std::make_unique<NumpyRandom>(seed),
                       std::make_unique<NumpyRandom>(seed));
  }

  bool step(const Json& event) {
    const int trial = event["trial"];
    if (event["event"] == "add") return add(trial, event);
    const bool is_complete = event["event"] == "complete";
    search_->tell({trial, is_complete ? Ended::How::kComplete : Ended::How::kPruned, number(event["value"]),
                   optional_number(event, "step")});
    return true;
  }

 private:
  bool add(int trial, const Json& event) {
    search_->begin(trial);
    bool same = true;
    Config ours;
    Config recorded;
    for (const auto& [name, value] : event["params"].items()) {
      for (const auto& parameter : parameters_) {
        if (parameter.name == name) ours.set(name, search_->suggest(parameter));
      }
      recorded.set(name, value_of(value));
      same = same && agree(*ours.find(name), *recorded.find(name));
    }
    out_ << "add trial " << trial << ": " << to_text(ours) << "\n";
    const bool is_tie = !same && least_gap(event) < 1e-9;
    if (is_tie) out_ << "  a tie: recorded is " << to_text(recorded) << "\n";
    search_->use(trial, recorded);
    if (same || is_tie) return true;
    out_ << "differs: ours     " << to_text(ours) << "\n         recorded " << to_text(recorded) << "\n";
    return false;
  }

  std::ostream& out_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<Search> search_;
};

}  // namespace

Replayed replay_tpe(const std::string& header, std::istream& trace, std::ostream& out) {
  TpeReplay replay(Json::parse(header), out);
  std::string line;
  while (std::getline(trace, line)) {
    const Json event = Json::parse(line);
    if (event["event"] == "end") return Replayed::kSame;
    if (!replay.step(event)) return Replayed::kDiffers;
  }
  out << "the trace ends without an end\n";
  return Replayed::kDiffers;
}

}  // namespace troupe::tune
