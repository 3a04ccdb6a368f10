// Tree-structured Parzen estimator, as Optuna's TPESampler for one objective.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "actors/tune/parzen.hpp"
#include "actors/tune/search.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::tune {
namespace {

struct Seen {
  enum class State { kRunning, kComplete, kPruned, kFailed };
  State state = State::kRunning;
  std::map<std::string, double> values{};    // what it has
  std::map<std::string, double> relative{};  // what was drawn for it together; some of it is never asked for
  double loss = 0;
  std::optional<double> last_step{};

  bool is_finished() const { return state == State::kComplete || state == State::kPruned; }
  const double* find(const std::string& name) const {
    if (const auto at = values.find(name); at != values.end()) return &at->second;
    if (state != State::kRunning) return nullptr;
    const auto at = relative.find(name);
    return at == relative.end() ? nullptr : &at->second;
  }
};

class TpeSearch final : public Search {
 public:
  TpeSearch(const Tpe& options, std::vector<Parameter> parameters, Mode mode, std::unique_ptr<Random> startup,
            std::unique_ptr<Random> model)
      : options_(options), mode_(mode), startup_(std::move(startup)), model_(std::move(model)) {
    for (auto& each : parameters) {
      Axis axis = axis_of(each.domain);
      axes_.emplace(each.name, axis);
      domains_.emplace(each.name, std::move(each.domain));
    }
  }

  void begin(int trial) override {
    current_ = trial;
    seen_[trial] = {};
    if (!options_.multivariate) return;
    for (const auto& names : options_.group ? grouped() : common()) {
      if (names.empty() || finished() < options_.n_startup_trials) continue;
      seen_[trial].relative.merge(sample(names));
    }
  }

  Value suggest(const Parameter& parameter) override {
    Seen& own = seen_[current_];
    const Axis& axis = axes_.at(parameter.name);
    double value = 0;
    if (is_single(axis)) {
      value = axis.low;
    } else if (const auto at = own.relative.find(parameter.name); at != own.relative.end()) {
      value = at->second;
    } else if (finished() < options_.n_startup_trials) {
      value = draw_anywhere(axis);
    } else {
      value = sample({parameter.name}).at(parameter.name);
    }
    own.values[parameter.name] = value;
    return value_of(parameter.domain, value);
  }

  void use(int trial, const Config& config) override {
    Seen& own = seen_[trial];
    own.values.clear();
    for (const auto& [name, value] : config.settings) {
      const auto at = domains_.find(name);
      if (at == domains_.end()) continue;
      const auto& values = at->second.values;
      const auto place = std::find(values.begin(), values.end(), value) - values.begin();
      if (place < std::ssize(values)) own.values[name] = static_cast<double>(place);
      if (values.empty()) own.values[name] = number_of(value);
    }
    own.relative.clear();
  }

  void tell(const Ended& ended) override {
    Seen& own = seen_[ended.trial];
    own.state = ended.how == Ended::How::kComplete ? Seen::State::kComplete
                : ended.how == Ended::How::kPruned ? Seen::State::kPruned
                                                   : Seen::State::kFailed;
    own.loss = std::isnan(ended.value) ? std::numeric_limits<double>::infinity()
               : mode_ == Mode::kMax   ? -ended.value
                                       : ended.value;
    own.last_step = ended.last_step;
  }

 private:
  using Names = std::set<std::string>;

  int finished() const {
    return static_cast<int>(
        std::count_if(seen_.begin(), seen_.end(), [](auto& each) { return each.second.is_finished(); }));
  }
  static bool is_single(const Axis& axis) {
    return axis.choices == 1 || (axis.choices == 0 && axis.low == axis.high);
  }

  /// Those that all finished trials have.
  std::vector<Names> common() const {
    Names names;
    bool is_first = true;
    for (const auto& [trial, each] : seen_) {
      if (!each.is_finished()) continue;
      if (is_first) {
        for (const auto& [name, value] : each.values) names.insert(name);
      } else {
        std::erase_if(names,
                      [&each = each](const std::string& name) { return each.values.count(name) == 0; });
      }
      is_first = false;
    }
    return {without_single(names)};
  }

  /// Parameters that were in the same trials until now.
  std::vector<Names> grouped() {
    for (const auto& [trial, each] : seen_) {
      if (!each.is_finished()) continue;
      Names rest;
      for (const auto& [name, value] : each.values) rest.insert(name);
      std::vector<Names> next;
      for (const Names& group : groups_) {
        Names inside, outside;
        for (const auto& name : group) (rest.erase(name) > 0 ? inside : outside).insert(name);
        if (!inside.empty()) next.push_back(std::move(inside));
        if (!outside.empty()) next.push_back(std::move(outside));
      }
      if (!rest.empty()) next.push_back(std::move(rest));
      groups_ = std::move(next);
    }
    std::vector<Names> groups;
    for (const Names& group : groups_) groups.push_back(without_single(group));
    return groups;
  }

  Names without_single(Names names) const {
    std::erase_if(names, [&](const std::string& name) { return is_single(axes_.at(name)); });
    return names;
  }

  std::map<std::string, double> sample(const Names& names) {
    std::vector<const Seen*> below;
    std::vector<const Seen*> above;
    split(below, above);
    std::vector<Axis> axes;
    for (const auto& name : names) axes.push_back(axes_.at(name));
    const Parzen good(axes, points_of(below, names));
    const Parzen other(axes, points_of(above, names));
    const auto candidates = good.sample(*model_, static_cast<std::size_t>(options_.n_ei_candidates));
    const Parzen::Point* best = nullptr;
    double most = 0;
    for (const auto& each : candidates) {
      const double gain = good.log_density(each) - other.log_density(each);
      if (best && !(gain > most)) continue;
      best = &each;
      most = gain;
    }
    std::map<std::string, double> values;
    std::size_t i = 0;
    for (const auto& name : names) values[name] = (*best)[i++];
    return values;
  }

  /// The best tenth, 25 at most: complete ones by value, then pruned ones by how far they came. Both by
  /// number.
  void split(std::vector<const Seen*>& below, std::vector<const Seen*>& above) const {
    std::vector<std::pair<int, const Seen*>> complete, pruned, rest;
    for (const auto& [number, each] : seen_) {
      if (number == current_) continue;
      if (each.state == Seen::State::kComplete) complete.push_back({number, &each});
      if (each.state == Seen::State::kPruned) pruned.push_back({number, &each});
      if (each.state == Seen::State::kRunning && options_.constant_liar) rest.push_back({number, &each});
    }
    const auto count = static_cast<double>(complete.size() + pruned.size());
    const auto take = static_cast<std::size_t>(std::min(std::ceil(0.1 * count), 25.0));
    std::stable_sort(complete.begin(), complete.end(),
                     [](auto& a, auto& b) { return a.second->loss < b.second->loss; });
    const auto rank = [](const Seen& each) {
      return each.last_step ? std::pair(-*each.last_step, each.loss) : std::pair(1.0, 0.0);
    };
    std::stable_sort(pruned.begin(), pruned.end(),
                     [&](auto& a, auto& b) { return rank(*a.second) < rank(*b.second); });
    complete.insert(complete.end(), pruned.begin(), pruned.end());
    const auto cut = complete.begin() + static_cast<std::ptrdiff_t>(take);
    std::sort(complete.begin(), cut);
    rest.insert(rest.end(), cut, complete.end());
    std::sort(rest.begin(), rest.end());
    std::for_each(complete.begin(), cut, [&](auto& each) { below.push_back(each.second); });
    for (const auto& [number, each] : rest) above.push_back(each);
  }

  /// Of those trials that have all of them.
  static std::vector<Parzen::Point> points_of(const std::vector<const Seen*>& trials, const Names& names) {
    std::vector<Parzen::Point> points;
    for (const Seen* each : trials) {
      Parzen::Point point;
      for (const auto& name : names) {
        if (const double* value = each->find(name)) point.push_back(*value);
      }
      if (point.size() == names.size()) points.push_back(std::move(point));
    }
    return points;
  }

  /// Before there are enough trials to learn from.
  double draw_anywhere(const Axis& axis) {
    if (axis.choices > 0) {
      std::size_t best = 0;
      double most = -1;
      for (std::size_t i = 0; i < axis.choices; ++i) {
        const double u = startup_->uniform();
        if (u > most) most = u, best = i;
      }
      return static_cast<double>(best);
    }
    const double low = axis.kernel_low();
    double x = low + (axis.kernel_high() - low) * startup_->uniform();
    if (axis.is_log) x = std::exp(x);
    if (axis.step > 0) x = axis.low + std::nearbyint((x - axis.low) / axis.step) * axis.step;
    return std::clamp(x, axis.low, axis.high);
  }

  static Value value_of(const Domain& domain, double value) {
    if (!domain.values.empty()) return domain.values[static_cast<std::size_t>(value)];
    const bool is_whole = domain.kind == Domain::Kind::kInteger || domain.kind == Domain::Kind::kLogInteger;
    if (is_whole) return static_cast<std::int64_t>(value);
    return value;
  }

  Tpe options_;
  Mode mode_;
  std::unique_ptr<Random> startup_, model_;
  std::map<std::string, Axis> axes_;
  std::map<std::string, Domain> domains_;
  std::map<int, Seen> seen_;  // by number
  std::vector<Names> groups_;
  int current_ = 0;
};

}  // namespace

std::unique_ptr<Search> make_tpe(const Tpe& options, std::vector<Parameter> parameters, Mode mode,
                                 std::unique_ptr<Random> startup, std::unique_ptr<Random> model) {
  if (options.n_startup_trials < 1 || options.n_ei_candidates < 1 ||
      (options.group && !options.multivariate)) {
    throw BadConfig(
        "tune: the options of Tpe make no sense",
        options.group && !options.multivariate ? "groups are drawn together" : "a count is below 1",
        "change n_startup_trials, n_ei_candidates, multivariate or group");
  }
  for (const auto& [name, domain, conditional] : parameters) {
    const bool is_stepped_log = domain.kind == Domain::Kind::kLogUniform && domain.step > 0;
    if (domain.kind == Domain::Kind::kNormal || is_stepped_log) {
      throw BadConfig(
          "tune: TPE cannot model " + name + ", " + to_text(domain),
          is_stepped_log ? "a logarithm with a step has uneven kernels" : "its kernels need two ends",
          "use tune::uniform, log_uniform, integer, log_integer or choice");
    }
  }
  return std::make_unique<TpeSearch>(options, std::move(parameters), mode, std::move(startup),
                                     std::move(model));
}

}  // namespace troupe::tune
