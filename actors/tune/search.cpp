#include "actors/tune/search.hpp"

#include "runtime/core/assert.hpp"

namespace troupe::tune {
namespace {

class RandomSearcher final : public Search {
 public:
  RandomSearcher(std::vector<Parameter> parameters, std::uint64_t seed)
      : parameters_(std::move(parameters)), seed_(seed) {}

  void begin(int trial) override { trial_ = static_cast<std::uint64_t>(trial); }
  void tell(const Ended&) override {}

  Value suggest(const Parameter& parameter) override {
    std::size_t at = 0;
    while (at < parameters_.size() && parameters_[at].name != parameter.name) ++at;
    TROUPE_ASSERT(at < parameters_.size(), "only the space's own parameters are asked for");
    if (parameter.domain.kind == Domain::Kind::kGrid) return value_of_grid(at);
    SeededRandom random(mix(mix(mix(0x74756e65, seed_), trial_), at));
    return draw(parameter.domain, random);
  }

 private:
  Value value_of_grid(std::size_t at) const {
    std::uint64_t stride = 1;  // how often the grids behind it change while it stays
    for (std::size_t i = at + 1; i < parameters_.size(); ++i) {
      if (parameters_[i].domain.kind == Domain::Kind::kGrid) stride *= parameters_[i].domain.values.size();
    }
    const auto& values = parameters_[at].domain.values;
    return values[trial_ / stride % values.size()];
  }

  std::vector<Parameter> parameters_;
  std::uint64_t seed_;
  std::uint64_t trial_ = 0;
};

}  // namespace

std::unique_ptr<Search> make_search(const AnySearch& options, std::vector<Parameter> parameters, Mode mode,
                                    std::uint64_t seed) {
  const auto* tpe = std::get_if<Tpe>(&options);
  if (!tpe) return std::make_unique<RandomSearcher>(std::move(parameters), seed);
  return make_tpe(*tpe, std::move(parameters), mode, std::make_unique<SeededRandom>(mix(0x74706531, seed)),
                  std::make_unique<SeededRandom>(mix(0x74706532, seed)));
}

}  // namespace troupe::tune
