// A space over a struct's fields: names, draws, conditions, functions of others, bad input.
#include "actors/tune/space.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "actors/tune/portable_math.hpp"
#include "actors/tune/search.hpp"

using namespace troupe;
using namespace troupe::tune;

namespace {

enum class Norm { kNone, kBatch };
struct Schedule {
  int warmup = 0;
  float decay = 1;
};
struct Job {
  std::string folder;
  double lr = 0.1;
  float momentum = 0.9F;
  int batch = 32;
  std::int64_t samples = 0;
  std::string kind = "sgd";
  bool nesterov = false;
  Norm norm = Norm::kNone;
  Schedule schedule{};
  double weight_decay = 0;
};
struct Other {
  double lr = 0;
};
struct Base {
  double rate = 0;
};
struct Derived : Base {
  explicit Derived(int) {}
  int extra = 0;
};

// A field that is not the struct's, or that the domain does not fit, does not compile.
static_assert(Fits<Real, Job, double Job::*> && Fits<Real, Job, float Job::*>);
static_assert(!Fits<Real, Job, double Other::*>);
static_assert(!Fits<Real, Job, int Job::*> && !Fits<Whole, Job, double Job::*> &&
              !Fits<Whole, Job, bool Job::*>);
static_assert(Fits<Among<const char*>, Job, std::string Job::*> &&
              !Fits<Among<const char*>, Job, double Job::*>);
static_assert(Fits<Among<int>, Job, double Job::*> && !Fits<Among<double>, Job, int Job::*>);
static_assert(Fits<Among<Norm>, Job, Norm Job::*> && !Fits<Among<int>, Job, Norm Job::*>);
static_assert(Fits<Real, Derived, double Base::*>);

Space<Job> whole_space() {
  return {{&Job::lr, log_uniform(1e-4, 1e-1)},
          {&Job::batch, integer(16, 64, 16)},
          {&Job::kind, choice({"sgd", "adam"})},
          {&Job::momentum, uniform(0, 0.99), [](const Job& job) { return job.kind == "sgd"; }},
          {&Job::nesterov, choice({false, true})},
          {&Job::norm, choice({Norm::kNone, Norm::kBatch})},
          {field(&Job::schedule, &Schedule::warmup), log_integer(1, 1000)},
          {field(&Job::schedule, &Schedule::decay), normal(1, 0.5, 0.25)},
          {&Job::weight_decay, [](const Job& job) { return job.lr / 8; }}};
}

Sample<Job> sample_of(const Space<Job>& space, int trial, std::uint64_t seed = 7) {
  const auto search = make_search(RandomSearch{}, space.parameters(), Mode::kMax, seed);
  search->begin(trial);
  return space.sample(Job{"data"}, [&](const Parameter& parameter) { return search->suggest(parameter); });
}

const double kNotANumber = std::numeric_limits<double>::quiet_NaN();

std::string refusal(const std::function<void()>& make) {
  try {
    make();
  } catch (const BadConfig& error) {
    CHECK(!error.info().what.empty());
    CHECK(!error.info().todo.empty());
    return error.info().what + ": " + error.info().why;
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("a field is named as in its struct", "[tune]") {
  CHECK(name_of_field(&Job::folder) == "folder");
  CHECK(name_of_field(&Job::weight_decay) == "weight_decay");
  CHECK(name_of<&Derived::extra>() == "extra");
  CHECK(whole_space().to_text() ==
        "lr log_uniform(1e-04, 0.1), batch integer(16, 64, 16), kind choice(sgd, adam), "
        "momentum uniform(0, 0.99) if, nesterov choice(false, true), norm choice(none, batch), "
        "schedule.warmup log_integer(1, 1000), schedule.decay normal(1, 0.5, 0.25), weight_decay computed");
  const Space<Derived> of_base{{field<&Base::rate>(), uniform(0, 1)},
                               {field<&Derived::extra>(), integer(1, 2)}};
  CHECK(of_base.to_text() == "rate uniform(0, 1), extra integer(1, 2)");
}

TEST_CASE("a trial's config is a function of the seed and its number, the same on every machine", "[tune]") {
  const auto space = whole_space();
  CHECK(to_text(sample_of(space, 0).config) ==
        "lr=0.0004143289566727112 batch=64 kind=sgd momentum=0.47728613 nesterov=true norm=none "
        "schedule.warmup=579 schedule.decay=0.75 weight_decay=5.17911195840889e-05");
  CHECK(to_text(sample_of(space, 1).config) ==
        "lr=0.0001984793130840239 batch=48 kind=adam nesterov=false norm=batch "
        "schedule.warmup=84 schedule.decay=1 weight_decay=2.4809914135502987e-05");
  CHECK(sample_of(space, 1).config != sample_of(space, 1, 8).config);
  CHECK(widen(0.1F) == 0.1);
}

TEST_CASE("every value is in its domain, and the struct's field is the config's", "[tune]") {
  const auto space = whole_space();
  int with_momentum = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const auto [job, config] = sample_of(space, trial);
    CHECK(job.folder == "data");
    CHECK((job.lr >= 1e-4 && job.lr <= 1e-1));
    CHECK(*config.find("lr") == Value(job.lr));
    CHECK((job.batch % 16 == 0 && job.batch >= 16 && job.batch <= 64));
    CHECK((job.schedule.warmup >= 1 && job.schedule.warmup <= 1000));
    CHECK(job.weight_decay == job.lr / 8);
    CHECK((config.find("momentum") != nullptr) == (job.kind == "sgd"));
    CHECK((job.kind == "sgd" || job.momentum == 0.9F));
    with_momentum += job.kind == "sgd";
    CHECK(space.apply(Job{"data"}, config).config == config);
  }
  CHECK((with_momentum > 60 && with_momentum < 140));
}

TEST_CASE("a changed config computes functions and conditions again", "[tune]") {
  const auto space = whole_space();
  Config config = sample_of(space, 0).config;
  config.set("lr", 0.5);
  config.set("kind", std::string("adam"));
  const auto [job, applied] = space.apply(Job{}, config);
  CHECK(*applied.find("weight_decay") == Value(0.0625));
  CHECK(!applied.find("momentum"));
  CHECK(refusal([&] { space.apply(Job{}, {}); }) ==
        "tune: the trial's lr cannot be set: the config has no such setting");
  config.set("lr", std::string("fast"));
  CHECK(refusal([&] { space.apply(Job{}, config); }) == "tune: the trial's lr cannot be set: it is fast");
}

TEST_CASE("trials go through all combinations of the grids, the last grid first", "[tune]") {
  const Space<Job> space{
      {&Job::batch, grid({16, 32, 64})}, {&Job::lr, uniform(0, 1)}, {&Job::kind, grid({"sgd", "adam"})}};
  CHECK(grid_points(space.parameters()) == 6);
  std::string seen;
  for (int trial = 0; trial < 7; ++trial) {
    const Job job = sample_of(space, trial).job;
    seen += std::to_string(job.batch) + job.kind + " ";
  }
  CHECK(seen == "16sgd 16adam 32sgd 32adam 64sgd 64adam 16sgd ");
}

TEST_CASE("TPE draws near the good trials, and repeats itself from its calls", "[tune]") {
  const Space<Job> space{{&Job::lr, uniform(0, 1)},
                         {&Job::kind, choice({"sgd", "adam"})},
                         {&Job::momentum, uniform(0, 1), [](const Job& job) { return job.kind == "sgd"; }}};
  std::string configs[2];
  for (auto& text : configs) {
    const auto search = make_search(Tpe{}, space.parameters(), Mode::kMin, 7);
    double sum = 0;
    for (int trial = 0; trial < 60; ++trial) {
      search->begin(trial);
      const auto [job, config] =
          space.sample(Job{}, [&](const Parameter& parameter) { return search->suggest(parameter); });
      text += to_text(config) + "\n";
      const double off = std::abs(job.lr - 0.3) + (job.kind == "adam");
      if (trial >= 40) sum += off;
      search->tell({trial, trial % 7 == 6 ? Ended::How::kPruned : Ended::How::kComplete,
                    trial == 3 ? kNotANumber : off, 1.0});
    }
    CHECK(sum / 20 < 0.4);  // random draws: 0.8
  }
  CHECK(configs[0] == configs[1]);

  const auto search = make_search(Tpe{.n_startup_trials = 1}, space.parameters(), Mode::kMin, 7);
  search->begin(0);
  search->use(0, {{{"lr", 0.3}, {"kind", std::string("adam")}}});  // a point to try first
  search->tell({0, Ended::How::kComplete, 0.0});
  search->begin(1);
  CHECK(std::holds_alternative<double>(search->suggest(space.parameters()[0])));
  const Space<Job> unbounded{{&Job::lr, normal(0, 1)}};
  CHECK(refusal([&] { make_search(Tpe{}, unbounded.parameters(), Mode::kMin, 7); }) ==
        "tune: TPE cannot model lr, normal(0, 1): its kernels need two ends");
}

TEST_CASE("a space that nothing can be drawn from is refused", "[tune]") {
  using S = Space<Job>;
  CHECK(refusal([] {
          S{{&Job::lr, uniform(1, 1)}};
        }) == "tune: lr cannot be drawn from uniform(1, 1): the range is empty: its ends are equal");
  CHECK(refusal([] { S{{&Job::lr, uniform(2, 1)}}; }).find("the range is inverted") != std::string::npos);
  CHECK(refusal([] { S{{&Job::batch, integer(9, 1)}}; }).find("the range is inverted") != std::string::npos);
  CHECK(refusal([] {
          S{{&Job::lr, log_uniform(0, 1)}};
        }) == "tune: lr cannot be drawn from log_uniform(0, 1): zero has no logarithm");
  CHECK(refusal([] { S{{&Job::lr, log_uniform(-1, 1)}}; }).find("no logarithm") != std::string::npos);
  CHECK(refusal([] {
          S{{&Job::batch, log_integer(0, 9)}};
        }).find("zero has no logarithm") != std::string::npos);
  CHECK(refusal([] {
          S{{&Job::lr, uniform(0, kNotANumber)}};
        }).find("not a finite number") != std::string::npos);
  CHECK(refusal([] { S{{&Job::lr, uniform(0, 1, -1)}}; }).find("step") != std::string::npos);
  CHECK(refusal([] { S{{&Job::lr, normal(0, 0)}}; }).find("standard deviation") != std::string::npos);
  CHECK(refusal([] {
          S{{&Job::kind, choice(std::vector<std::string>{})}};
        }).find("no values") != std::string::npos);
  CHECK(refusal([] {
          S{{&Job::lr, uniform(0, 1)}, {&Job::lr, uniform(0, 1)}};
        }).find("twice") != std::string::npos);
  // What a double cannot hold, or could not tell apart.
  const double most = std::numeric_limits<double>::max();
  CHECK(refusal([&] { S{{&Job::lr, uniform(-most, most)}}; }).find("too far apart") != std::string::npos);
  CHECK(refusal([&] { S{{&Job::lr, normal(0, most)}}; }).find("too far apart") != std::string::npos);
  for (const auto& domain : {uniform(0, 1, 1e-320), log_uniform(1, 2, 1e-320), normal(0, 1, 1e-320)})
    CHECK(refusal([&] { S{{&Job::lr, domain}}; }).find("its step is too small") != std::string::npos);
  const std::int64_t above = (std::int64_t{1} << 53) + 1;
  CHECK(refusal([&] { S{{&Job::samples, integer(0, above)}}; }).find("2^53") != std::string::npos);
  CHECK(refusal([&] { S{{&Job::samples, log_integer(1, above)}}; }).find("2^53") != std::string::npos);
  CHECK(refusal([&] { S{{&Job::samples, integer(-above, 0)}}; }).find("2^53") != std::string::npos);
  CHECK(refusal([&] {
          S{{&Job::samples, integer(1 - above, above - 2)}};
        }).find("2^53") != std::string::npos);
  S{{&Job::samples, integer(2 - above, above - 2)}};
  // What the field itself cannot hold.
  CHECK(refusal([] {
          S{{&Job::batch, integer(0, 3'000'000'000)}};
        }) ==
        "tune: batch cannot be drawn from integer(0, 3e+09): its field holds -2147483648 to 2147483647");
  CHECK(refusal([] { S{{&Job::momentum, uniform(0, 1e300)}}; }).find("its field holds") != std::string::npos);
  CHECK(refusal([&] {
          S{{&Job::batch, grid({1L, 3'000'000'000L})}};
        }).find("its field holds") != std::string::npos);
  const std::vector<int> thousand(1000, 1);
  CHECK(refusal([&] {
          S{{&Job::batch, grid(thousand)},
            {field(&Job::schedule, &Schedule::warmup), grid(thousand)},
            {&Job::lr, grid(thousand)}};
        }) == "tune: the grid has 1e+09 points: each is a trial, and 1000000 are the most");
}

TEST_CASE("exp and log without the C library are right to two units in the last place", "[tune]") {
  SeededRandom random(7);
  for (int i = 0; i < 20'000; ++i) {
    const double x = 1400 * random.uniform() - 700;
    CHECK(std::abs(portable_exp(x) / std::exp(x) - 1) < 4.5e-16);
    const double y = std::exp(x);
    CHECK(std::abs(portable_log(y) - std::log(y)) <= 4.5e-16 * std::max(std::abs(std::log(y)), 1e-9));
  }
  CHECK(portable_exp(0) == 1);
  CHECK(portable_log(1) == 0);
  CHECK(std::isinf(portable_exp(1000)));
}
