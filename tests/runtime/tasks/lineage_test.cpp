// What is computed again when it is lost: each decision, and random programs whose values die at random.
#include "runtime/tasks/lineage.hpp"

#include <catch2/catch.hpp>

#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::tasks;

namespace {

using Number = Lineage::Number;

/// A process around it: values that exist, who holds them, and tasks that run.
struct World {
  explicit World(std::uint64_t most_bytes = Lineage::kMostBytes) : lineage(most_bytes) {}

  Lineage lineage;
  Lineage::Actions out;
  std::set<Number> running, referred, held, values;
  std::map<Number, std::vector<Number>> arguments;
  std::map<Number, ErrorInfo> failed;
  std::map<Number, int> runs;
  std::vector<Number> submitted, hastened;
  std::size_t recipes = 0;
  Number last = 0;

  void carry_out() {
    while (!out.empty()) {
      for (const auto& action : std::exchange(out, {})) std::visit([this](const auto& a) { act(a); }, action);
    }
  }
  void act(const Lineage::Submit& a) {
    for (const Number argument : arguments.at(a.number)) {
      INFO("task " << a.number << " is to run, and reads " << argument);
      CHECK(held.contains(argument));
    }
    CHECK(running.insert(a.number).second);
    submitted.push_back(a.number);
    ++runs[a.number];
  }
  void act(const Lineage::Hold& a) { CHECK(held.insert(a.number).second); }
  void act(const Lineage::Release& a) {
    CHECK(held.erase(a.number) == 1);
    free_if_unused(a.number);
  }
  void act(const Lineage::Fail& a) {
    CHECK_FALSE(values.contains(a.number));
    failed[a.number] = a.error;
  }
  void act(const Lineage::Forget&) {
    REQUIRE(recipes > 0);
    --recipes;
  }
  void act(const Lineage::Hasten& a) {
    CHECK(running.contains(a.number));
    CHECK(lineage.is_wanted(a.number));
    hastened.push_back(a.number);
  }
  /// What keeps a wanted value from being computed is wanted, too. 0: all of it.
  Number not_wanted() const {
    for (const auto& [number, reads] : arguments) {
      if (!lineage.is_wanted(number) || running.contains(number)) continue;
      for (const Number read : reads) {
        if (!lineage.is_wanted(read) && !values.contains(read)) return read;
      }
    }
    return 0;
  }
  void free_if_unused(Number number) {
    if (held.contains(number) || referred.contains(number)) return;
    values.erase(number);
    lineage.dropped(number, out);
  }

  Number add(std::vector<Number> reads, int max_retries = 1, std::uint64_t bytes = 1, bool has_result = true,
             std::vector<Number> mentions = {}) {
    const Number number = ++last;
    arguments[number] = reads;
    ++recipes;
    if (has_result) referred.insert(number);
    lineage.add(number,
                {"f" + std::to_string(number), std::move(reads), bytes, max_retries, has_result, false,
                 std::move(mentions)},
                out);
    carry_out();
    return number;
  }
  /// A task with so many results: its own number, and theirs.
  std::pair<Number, std::vector<Number>> add_several(std::size_t results, std::vector<Number> reads = {},
                                                     int max_retries = 1) {
    const Number number = ++last;
    const std::string name = "f" + std::to_string(number);
    arguments[number] = reads;
    referred.insert(number);
    ++recipes;
    lineage.add(number, {name, std::move(reads), 1, max_retries}, out);
    std::vector<Number> parts;
    for (std::size_t i = 0; i < results; ++i) {
      parts.push_back(++last);
      arguments[last] = {number};
      referred.insert(last);
      ++recipes;
      lineage.add(last, {name, {number}, 0, max_retries, true, true}, out);
    }
    carry_out();
    drop(number);  // nobody but its results refers to it
    return {number, parts};
  }
  /// It runs: with all its arguments there it has a value, else it says that one is lost.
  void run(Number number) {
    REQUIRE(running.erase(number) == 1);
    bool all = true;
    for (const Number argument : arguments.at(number)) all = all && values.contains(argument);
    if (all) {
      if (referred.contains(number) || held.contains(number)) values.insert(number);
      lineage.made(number, out);
    } else {
      lineage.argument_lost(number, {ErrorCode::kObjectLost, "an argument is lost", "", ""}, true, out);
    }
    carry_out();
  }
  void run_all() {
    for (int steps = 0; !running.empty(); ++steps) {
      REQUIRE(steps < 100'000);
      run(*running.begin());
    }
  }
  void lose(Number number) {
    if (values.erase(number) == 0) return;
    lineage.lost(number, "node 7 died", out);
    carry_out();
  }
  void want(Number number) {
    lineage.want(number, out);
    carry_out();
  }
  void drop(Number number) {
    referred.erase(number);
    free_if_unused(number);
    carry_out();
  }
};

}  // namespace

TEST_CASE("Whether a lost value is computed again is said with a reason") {
  CHECK(recompute({true, 2, 3}).again);
  CHECK(recompute({true, 2, 3}).reason.find("1 of 3 retries") != std::string::npos);
  CHECK_FALSE(recompute({true, 0, 3}).again);
  CHECK(recompute({true, 0, 3}).reason.find("ran again 3 times") != std::string::npos);
  CHECK_FALSE(recompute({true, 0, 0}).again);
  CHECK(recompute({true, 0, 0}).reason.find("max_retries = 0") != std::string::npos);
  CHECK_FALSE(recompute({false, 3, 3}).again);
  CHECK(recompute({false, 3, 3}).reason.find("were dropped") != std::string::npos);
}

TEST_CASE("A task runs once its arguments are there; what is lost waits until somebody wants it") {
  World w;
  const Number a = w.add({});
  const Number b = w.add({a});
  CHECK(w.running == std::set<Number>{a});
  w.run(a);
  CHECK(w.running == std::set<Number>{b});
  w.run(b);
  w.lose(a);
  w.lose(b);
  CHECK(w.running.empty());
  w.want(b);
  CHECK(w.running == std::set<Number>{a});
  w.run_all();
  CHECK(w.values == std::set<Number>{a, b});
  w.lose(b);
  w.want(b);
  REQUIRE(w.failed.contains(b));
  CHECK(w.failed.at(b).why.find("node 7 died; it is not computed again: its task ran again 1 times") == 0);
}

TEST_CASE("What somebody waits for is hastened once, and first what it is computed from") {
  World w;
  const Number a = w.add({}), b = w.add({a}), c = w.add({a, b}), aside = w.add({a});
  CHECK(w.hastened.empty());  // that others read it is no wait
  for (int i = 0; i < 1'000'000; ++i) w.lineage.want(c, w.out);
  CHECK(w.out.size() == 1);
  w.carry_out();
  CHECK(w.hastened == std::vector<Number>{a});  // which runs
  for (const Number one : {a, b, c}) CHECK(w.lineage.is_wanted(one));
  CHECK_FALSE(w.lineage.is_wanted(aside));
  w.run(a);
  CHECK(w.running == std::set<Number>{b, aside});
  CHECK_FALSE(w.lineage.is_wanted(a));  // it is there
  w.run(b);
  CHECK(w.lineage.is_wanted(c));
  SECTION("what is lost meanwhile, too") {
    w.lose(a);
    w.run(c);
    CHECK(w.lineage.is_wanted(a));
    CHECK(w.running == std::set<Number>{a, aside});
  }
  SECTION("when it is there, nobody waits") {
    w.run(c);
    CHECK_FALSE(w.lineage.is_wanted(c));
    w.lose(a);
    w.run(aside);
    CHECK_FALSE(w.lineage.is_wanted(a));  // somebody reads it, and nobody waits for that
    w.want(aside);
    CHECK(w.hastened == std::vector<Number>{a, a});
  }
  CHECK_FALSE(w.lineage.is_wanted(999));
}

TEST_CASE("What waited for one value runs in the order of its submission") {
  World w;
  const Number a = w.add({});
  std::vector<Number> in_order{a};
  for (int i = 0; i < 20; ++i) in_order.push_back(w.add({a}));
  w.run(a);
  CHECK(w.submitted == in_order);
}

TEST_CASE("What a wanted task may wait for when it runs goes before it, a chain from its beginning") {
  World w;
  const Number gone = 999;
  const Number first = w.add({}), waits = w.add({first}), aside = w.add({});
  std::vector<Number> chain{w.add({}, 1, 1, true, {waits, gone})};
  for (int i = 0; i < 100'000; ++i)
    chain.push_back(w.add({}, 1, 1, true, {chain.back(), chain[chain.size() / 2]}));
  w.run(chain.front());
  for (int i = 0; i < 1'000; ++i) w.lineage.want(chain.back(), w.out);
  w.carry_out();
  CHECK(w.hastened == std::vector<Number>(chain.begin() + 1, chain.end()));
  CHECK_FALSE(w.lineage.is_wanted(waits));  // what mentions it has run
  CHECK_FALSE(w.lineage.is_wanted(aside));
  const Number reader = w.add({}, 1, 1, true, {waits});
  w.want(reader);
  CHECK(w.lineage.is_wanted(waits));
  CHECK(std::vector<Number>(w.hastened.end() - 2, w.hastened.end()) == std::vector<Number>{reader, first});
}

TEST_CASE("Who waits for one of several results waits for the task, and for what that reads") {
  World w;
  const Number a = w.add({});
  const auto [task, parts] = w.add_several(2, {a});
  w.want(parts[1]);
  CHECK(w.hastened == std::vector<Number>{a});
  CHECK(w.lineage.is_wanted(task));
  CHECK_FALSE(w.lineage.is_wanted(parts[0]));
}

TEST_CASE("An argument that nobody refers to is no value, but a recipe") {
  World w;
  const Number a = w.add({});
  const Number b = w.add({a});
  w.drop(a);
  w.run_all();
  CHECK(w.values == std::set<Number>{b});
  CHECK(w.lineage.size() == 2);
  w.lose(b);
  w.want(b);
  w.run_all();
  CHECK(w.values == std::set<Number>{b});
  CHECK(w.runs[a] == 2);
  w.drop(b);
  CHECK(w.lineage.size() == 0);
  CHECK(w.recipes == 0);
}

// Was: each time that it was computed again, its worker could be lost max_retries times.
TEST_CASE("Losses of workers and of values are of one number of retries") {
  World w;
  const Number a = w.add({}, 3);
  CHECK(w.lineage.retries(a) == 3);
  w.lineage.retried(a);
  w.lineage.retried(a);
  w.run(a);
  CHECK(w.lineage.retries(a) == 1);
  w.lose(a);
  w.want(a);
  CHECK(w.lineage.retries(a) == 0);
  w.lineage.retried(a);  // it is never less
  w.run(a);
  w.lose(a);
  w.want(a);
  CHECK(w.failed.at(a).why.find("its task ran again 3 times, as max_retries allows") != std::string::npos);
}

TEST_CASE("What cannot be computed again fails whatever is computed from it") {
  World w;
  const Number a = w.add({}, 0);
  const Number b = w.add({a}, 3);
  const Number c = w.add({b}, 3);
  w.run(a);
  w.run(b);
  w.lose(a);
  w.lose(b);
  w.run(c);  // its argument is not there
  CHECK(w.running.empty());
  REQUIRE(w.failed.contains(c));
  CHECK(w.failed.at(c).what == "what f1 computed is lost");
  CHECK(w.failed.at(c).why.find("max_retries = 0") != std::string::npos);
  const Number d = w.add({b});  // fails at once
  CHECK(w.failed.contains(d));
}

TEST_CASE("Several results of a task live, are lost and go each by itself, and come of one run") {
  World w;
  const Number a = w.add({});
  const auto [task, parts] = w.add_several(3, {a});
  const Number b = w.add({parts[0], parts[2]});
  CHECK(w.lineage.waiting() == 2);  // parts are no tasks
  w.run(a);
  CHECK(w.running == std::set<Number>{task});
  w.run_all();
  CHECK(w.runs[task] == 1);
  CHECK_FALSE(w.values.contains(task));  // their values are all that is kept
  for (const Number part : parts) CHECK(w.values.contains(part));
  w.drop(parts[1]);
  CHECK_FALSE(w.values.contains(parts[1]));
  SECTION("one that is lost is computed again, and those that were lost with it") {
    w.lose(parts[0]);
    w.lose(parts[2]);
    CHECK(w.running.empty());
    w.want(parts[0]);
    w.run_all();
    CHECK(w.runs[task] == 2);
    CHECK(w.values.contains(parts[0]));
    CHECK(w.values.contains(parts[2]));  // though nobody wanted it yet
    CHECK_FALSE(w.values.contains(parts[1]));
    w.lose(parts[2]);
    w.want(parts[2]);
    REQUIRE(w.failed.contains(parts[2]));
    CHECK(w.failed.at(parts[2]).why ==
          "node 7 died; it is not computed again: its task ran again 1 times, as max_retries allows");
    CHECK(w.values.contains(parts[0]));
    CHECK_FALSE(w.failed.contains(parts[0]));
  }
  SECTION("one alone") {
    w.lose(parts[2]);
    w.want(parts[2]);
    w.run_all();
    CHECK(w.values.contains(parts[2]));
    CHECK(w.runs[parts[0]] == 1);
  }
  w.drop(b);
  w.drop(parts[0]);
  w.drop(parts[2]);
  CHECK(w.held.empty());
  w.drop(a);
  CHECK(w.lineage.size() == 0);
  CHECK(w.recipes == 0);
}

TEST_CASE("What a task with several results throws is the failure of each") {
  World w;
  const auto [task, parts] = w.add_several(2);
  const Number b = w.add({parts[1]});
  w.running.clear();
  w.lineage.failed(task, {ErrorCode::kTaskFailed, "it threw", "", ""}, w.out);
  w.carry_out();
  for (const Number one : {parts[0], parts[1], b}) CHECK(w.failed.at(one).what == "it threw");
  for (const Number one : {parts[0], parts[1], b}) w.drop(one);
  CHECK(w.lineage.size() == 0);
  const Number lost = w.add({}, 0);
  w.run(lost);
  w.lose(lost);
  const auto [late, both] = w.add_several(2, {lost});  // fails at once
  for (const Number one : both) CHECK(w.failed.contains(one));
  CHECK_FALSE(w.running.contains(late));
}

TEST_CASE("A put argument that is lost is no cause to run its task again and again") {
  World w;
  const Number a = w.add({});
  const ErrorInfo lost{ErrorCode::kObjectLost, "object 5 is lost", "the process that made it is gone",
                       "put it"};
  w.running.clear();
  w.lineage.argument_lost(a, lost, false, w.out);
  w.carry_out();
  CHECK(w.failed.at(a).what == "object 5 is lost");
  CHECK(w.running.empty());

  const Number b = w.add({}, 3);
  w.run(b);
  w.lose(b);
  w.want(b);
  CHECK(w.running.erase(b) == 1);
  w.lineage.argument_lost(b, lost, false, w.out);
  w.carry_out();
  const auto& why = w.failed.at(b);
  CHECK(why.what == "what f2 computed is lost");
  CHECK(why.why ==
        "node 7 died; it is not computed again: an argument of its task is lost for good: object 5 is "
        "lost: the process that made it is gone");
  CHECK(w.running.empty());
}

TEST_CASE("A task that came too early runs again, though its arguments are there by now") {
  World w;
  const Number a = w.add({});
  const Number b = w.add({a}, 0);
  w.run(a);
  CHECK(w.running.erase(b) == 1);
  w.lineage.argument_lost(b, {ErrorCode::kObjectLost, "it is being computed", "", ""}, true, w.out);
  w.carry_out();
  CHECK(w.running == std::set<Number>{b});
  CHECK(w.failed.empty());
}

TEST_CASE("A task that is cancelled while it waits for its arguments holds them no longer") {
  World w;
  const Number a = w.add({});
  const Number b = w.add({a}, 1, 1, false);
  CHECK(w.held.contains(a));
  CHECK(w.lineage.waiting() == 1);
  w.lineage.failed(b, {ErrorCode::kCancelled, "", "", ""}, w.out);
  w.carry_out();
  CHECK(w.held.empty());
  CHECK(w.lineage.size() == 1);
  CHECK(w.lineage.waiting() == 0);
  CHECK(w.lineage.waiting_bytes() == 0);
}

TEST_CASE("A value that is lost before it is said to be made is computed again") {
  World w;
  const Number a = w.add({});
  w.lineage.lost(a, "node 7 died", w.out);
  w.running.clear();
  w.lineage.made(a, w.out);
  w.carry_out();
  CHECK(w.running == std::set<Number>{a});
  w.run_all();
  CHECK(w.values.contains(a));
}

// Its wish was ignored while the machine took the value for made, and nobody said it again: 10 minutes, then
// Timeout.
TEST_CASE("A value that a task wants before it is said to be gone is computed again") {
  World w;
  const Number a = w.add({});
  w.run(a);
  w.referred.erase(a);
  w.values.erase(a);  // freed; the machine is to hear so
  const Number b = w.add({a});
  REQUIRE(w.running == std::set<Number>{b});
  w.want(a);  // it reads it
  w.lineage.dropped(a, w.out);
  w.carry_out();
  CHECK(w.running == std::set<Number>{a, b});
  w.run(a);
  CHECK(w.values.contains(a));
  w.run(b);
  CHECK(w.runs[a] == 2);
  CHECK(w.runs[b] == 1);
  CHECK(w.held.empty());
}

TEST_CASE("The oldest recipes go when they are too many bytes") {
  World w(100);
  std::vector<Number> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(w.add({}, 3, 10));
    w.run_all();
    CHECK(w.lineage.bytes() <= 100);
  }
  w.lose(all.front());
  w.want(all.front());
  REQUIRE(w.failed.contains(all.front()));
  CHECK(w.failed.at(all.front()).why.find("were dropped") != std::string::npos);
  w.lose(all.back());
  w.want(all.back());
  w.run_all();
  CHECK(w.values.contains(all.back()));
}

TEST_CASE("A chain of any length is computed again without taking stack") {
  World w;
  Number last = w.add({});
  for (int i = 0; i < 100'000; ++i) {
    const Number next = w.add({last});
    w.run_all();
    w.drop(last);
    last = next;
  }
  CHECK(w.values.size() <= 2);
  w.lose(last);
  w.want(last);
  CHECK(w.lineage.is_wanted(1));  // from the last to the first of them
  for (int i = 0; i <= 100'000 && !w.running.empty(); ++i) w.run(*w.running.begin());
  CHECK(w.values.contains(last));
  w.drop(last);
  CHECK(w.lineage.size() == 0);
}

TEST_CASE("Random programs whose values die at random: each want ends, and nothing leaks") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    auto next = [state = mix(seed, 0)](std::uint64_t below) mutable {
      state = mix(state, 1);
      return state % below;
    };
    World w(next(3) == 0 ? 30 : Lineage::kMostBytes);
    for (int step = 0; step < 300; ++step) {
      const auto any = [&](const std::set<Number>& of) {
        return *std::next(of.begin(), long(next(of.size())));
      };
      switch (next(6)) {
        case 0: {
          std::set<Number> reads;
          for (std::uint64_t i = next(4); i > 0 && !w.referred.empty(); --i) {
            const Number one = any(w.referred);
            if (w.lineage.contains(one)) reads.insert(one);
          }
          if (next(4) == 0) {
            w.add_several(1 + next(3), {reads.begin(), reads.end()}, int(next(4)));
          } else {
            w.add({reads.begin(), reads.end()}, int(next(4)), 1 + next(3), next(5) != 0);
          }
          break;
        }
        case 1:
        case 2:
          if (!w.running.empty()) w.run(any(w.running));
          break;
        case 3:
          if (!w.values.empty()) w.lose(any(w.values));
          break;
        case 4:
          if (!w.referred.empty()) w.want(any(w.referred));
          break;
        case 5:
          if (w.referred.size() > 5) w.drop(any(w.referred));
          break;
      }
      CHECK(w.not_wanted() == 0);
    }
    w.run_all();
    for (const Number number : std::set<Number>(w.referred)) {
      w.want(number);
      w.run_all();
      INFO("object " << number);
      CHECK(w.values.contains(number) != w.failed.contains(number));
      if (w.failed.contains(number)) CHECK(w.failed.at(number).code == ErrorCode::kObjectLost);
    }
    CHECK(w.held.empty());
    for (const Number number : std::set<Number>(w.referred)) w.drop(number);
    CHECK(w.lineage.size() == 0);
    CHECK(w.lineage.bytes() == 0);
    CHECK(w.lineage.waiting() == 0);
    CHECK(w.lineage.waiting_bytes() == 0);
    CHECK(w.recipes == 0);
    CHECK(w.values.empty());
  }
}
