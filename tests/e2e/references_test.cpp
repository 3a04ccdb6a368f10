// References in answers, on real nodes: whoever asked holds them, whichever side dies.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <thread>

#include "runtime/host/process.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/tasks/tasks.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/objects.hpp"
#include "tests/e2e/other_node.hpp"

namespace references_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

using Numbers = std::vector<double>;
using Reference = ObjectRef<Numbers>;
constexpr std::size_t kCount = 100'000;  // 800 KB

struct Parts {
  std::string note;
  std::vector<Reference> parts;
  std::optional<ObjectRef<std::string>> text;
};

double sum(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

/// Owns objects, and gives references to them away.
struct Owner {
  Reference give(double value) { return this_actor().session().put(Numbers(kCount, value)); }
  Parts give_parts(int count, std::size_t note) {
    const auto session = this_actor().session();
    Parts given{std::string(note, 'n'), {}, session.put(std::string("text"))};
    for (int i = 0; i < count; ++i) given.parts.push_back(session.put(Numbers{double(i)}));
    return given;
  }
  std::uint64_t owned() { return this_actor().process().objects()->counts().owned; }
  int pid() { return ::getpid(); }
};
/// Holds what others own.
struct Holder {
  Reference kept;
  void keep(const Reference& reference) { kept = reference; }
  Reference release() { return std::exchange(kept, {}); }
  Task<Reference> release_late() {
    const auto released = this_actor().self<Holder>().call<&Holder::release>();
    co_return co_await released;
  }
  Future<Reference> release_of(const ActorHandle<Holder>& other) { return other.call<&Holder::release>(); }
  void take(const ActorHandle<Holder>& other) { kept = other.call<&Holder::release>().get(60s); }
  double total() { return sum(kept.get(60s)); }
  std::uint64_t borrowed() { return this_actor().process().objects()->counts().borrowed; }
  int pid() { return ::getpid(); }
};

Reference load(double value) {
  return this_actor().session().put(Numbers(kCount, value));
}
Numbers make(double value) {
  return Numbers(kCount, value);
}
Numbers bad(double) {
  throw std::runtime_error("there is no such number");
}
/// Kills the one that is to copy what it answers, once that is asked to. Its second run finds another one.
Reference load_and_kill(double value, int keeper) {
  auto& process = dynamic_cast<Process&>(this_actor().process());
  if (is_alive(pid_t(keeper))) {
    std::thread([&process, keeper, before = process.calls_under_way()] {
      while (process.calls_under_way() == before) std::this_thread::sleep_for(1ms);
      ::kill(pid_t(keeper), SIGKILL);
    }).detach();
  }
  return load(value);
}
Parts load_parts(double value) {
  const auto session = this_actor().session();
  const auto twice = session.compute<&make>(value);
  return {"parts", {session.put(Numbers(kCount, value)), twice, twice}, session.put(std::string("text"))};
}
Parts load_bad() {
  return {"", {this_actor().session().compute<&bad>(1.0)}, {}};
}
Reference pass_on(const Reference& reference) {
  return reference;
}

bool owns_nothing(const ActorHandle<Owner>& owner) {
  return eventually([&] { return owner.call<&Owner::owned>().get(60s) == 0; }, 60s);
}
bool nothing_left(const Session& session) {
  return eventually(
      [&] {
        const auto counts = session.process().objects()->counts();
        return counts.owned == 0 && counts.borrowed == 0;
      },
      60s);
}
void kill_it(int pid) {
  ::kill(pid_t(pid), SIGKILL);
  CHECK(eventually([&] { return !is_alive(pid_t(pid)); }, 30s));
}

}  // namespace

TEST_CASE("An answer may hold references: its caller holds them, and lets go") {
  auto session = two_nodes();
  const auto far = session.spawn<Owner>({.isolated = true, .node = other_node(session)});
  const auto light = session.spawn<Owner>({.node = other_node(session)});
  for (const auto& owner : {far, light}) {
    CHECK(sum(owner.call<&Owner::give>(1.0).get(60s).get(60s)) == 1.0 * kCount);
    const auto unread = owner.call<&Owner::give>(2.0);
    for (const std::size_t note :
         {std::size_t{3}, std::size_t{1'000'000}}) {  // also one that goes as an object
      const auto parts = owner.call<&Owner::give_parts>(30, note).get(60s);
      CHECK(parts.note.size() == note);
      REQUIRE(parts.parts.size() == 30);
      for (int i = 0; i < 30; ++i) CHECK(parts.parts[std::size_t(i)].get(60s) == Numbers{double(i)});
      CHECK(parts.text.value().get(60s) == "text");
    }
    CHECK(sum(unread.get(60s).get(60s)) == 2.0 * kCount);  // a Future holds what its answer refers to
    std::vector<Future<Reference>> several;
    for (int i = 0; i < 4; ++i) several.push_back(owner.call<&Owner::give>(double(i)));
    const auto all = when_all(several);
    several.clear();
    for (int i = 0; i < 4; ++i) CHECK(sum(all.get(60s)[std::size_t(i)].get(60s)) == double(i) * kCount);
    const auto group = session.spawn_group<Owner>(2);
    const auto answers = group.call_all<&Owner::give>(5.0).get(60s);
    for (const auto& one : answers) CHECK(sum(one.get(60s)) == 5.0 * kCount);
    owner.call<&Owner::give>(6.0).cancel();
  }
  CHECK(owns_nothing(far));
  CHECK(owns_nothing(light));
  CHECK(nothing_left(session));
}

TEST_CASE("What nobody holds but an answer under way stays until its caller is known") {
  auto session = two_nodes();
  const auto owner = session.spawn<Owner>({.isolated = true, .node = other_node(session)});
  const auto first = session.spawn<Holder>({.isolated = true, .node = session.node()});
  const auto second = session.spawn<Holder>({.node = other_node(session)});
  for (int i = 0; i < 100; ++i) {
    INFO("round " << i);
    first.call<&Holder::keep>(owner.call<&Owner::give>(double(i)).get(60s)).get(60s);
    const auto back = i % 3 == 0   ? first.call<&Holder::release>().get(60s)
                      : i % 3 == 1 ? first.call<&Holder::release_late>().get(60s)
                                   : second.call<&Holder::release_of>(first).get(60s);
    second.call<&Holder::keep>(back).get(60s);
    first.call<&Holder::take>(second).get(60s);
    CHECK(first.call<&Holder::total>().get(60s) == double(i) * kCount);
  }
  first.call<&Holder::release>().get(60s);
  CHECK(owns_nothing(owner));
  CHECK(eventually([&] { return second.call<&Holder::borrowed>().get(60s) == 0; }, 60s));
}

TEST_CASE("What a task has put or computed and refers to in its answer outlives its worker") {
  auto session = two_nodes();
  {
    const auto on = session.with({.node = other_node(session)});
    const auto one = on.submit<&load>(1.0).get(60s);
    const auto parts = on.submit<&load_parts>(2.0).get(60s);
    const auto mine = session.put(Numbers(kCount, 3.0));
    const auto same = on.submit<&pass_on>(mine).get(60s);
    const auto computed = on.submit<&pass_on>(session.compute<&make>(4.0)).get(60s);
    CHECK(no_workers(session));
    CHECK(sum(one.get(60s)) == 1.0 * kCount);
    REQUIRE(parts.parts.size() == 3);
    for (const auto& part : parts.parts) CHECK(sum(part.get(60s)) == 2.0 * kCount);
    CHECK(parts.text.value().get(60s) == "text");
    CHECK(sum(same.get(60s)) == 3.0 * kCount);
    CHECK(sum(computed.get(60s)) == 4.0 * kCount);
    const auto why = message_of<TaskFailed>([&] { session.submit<&load_bad>().get(60s); });
    CHECK(why.find("there is no such number") != std::string::npos);
    const auto refused = message_of<Error>([&] { session.compute<&load_parts>(1.0).get(60s); });
    INFO(refused);
    CHECK(refused.find("not in objects") != std::string::npos);
  }
  CHECK(nothing_left(session));
  const auto keeper = session.spawn<Owner>({.node = other_node(session)});
  CHECK(owns_nothing(keeper));
}

// Was: ActorDied at once, as if its code had thrown that.
TEST_CASE("A task whose keeper dies while that copies what the answer refers to is tried again") {
  auto session = two_nodes();
  const NodeId node = other_node(session);
  const int retries = GENERATE(0, 1);
  const int keeper = session.spawn<Owner>({.node = node}).call<&Owner::pid>().get(60s);
  REQUIRE(stand_still(pid_t(keeper)));  // so it copies nothing
  const auto answer =
      session.with({.max_retries = retries, .node = node}).submit<&load_and_kill>(5.0, keeper);
  if (retries == 0) {
    const auto why = message_of<ActorDied>([&] { answer.get(90s); });
    INFO(why);
    CHECK(why.find("load_and_kill") != std::string::npos);
    CHECK(why.find("the process that was to keep what it answered is gone") != std::string::npos);
  } else {
    CHECK(sum(answer.get(90s).get(60s)) == 5.0 * kCount);
  }
}

// Was: a node tells no death while it is not connected, and nobody told it later: what a worker had borrowed
// whose lease the broken link had ended was held until the program ended.
TEST_CASE("Who dies while the link between the nodes is broken holds nothing any more") {
  auto session = two_nodes();
  const auto holder = session.spawn<Holder>({.isolated = true, .node = other_node(session)});
  auto own = session.put(Numbers(kCount, 1.0));
  holder.call<&Holder::keep>(own).get(60s);
  own = {};
  CHECK(owned(session) == 1);
  const auto pid = holder.call<&Holder::pid>().get(60s);
  REQUIRE(cut_connections(children(::getpid(), "troupe-node")) >= 2);
  kill_it(pid);
  CHECK(nothing_left(session));
}

TEST_CASE("A task whose answer refers to what it computes needs no more than the one CPU that there is") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  const auto parts = session.submit<&load_parts>(2.0).get(90s);
  for (const auto& part : parts.parts) CHECK(sum(part.get(60s)) == 2.0 * kCount);
}

TEST_CASE("Whoever is killed takes along what it owns, and no more") {
  auto session = two_nodes();
  const auto owner = session.spawn<Owner>({.isolated = true, .node = other_node(session)});
  const auto holder = session.spawn<Holder>({.isolated = true, .node = session.node()});
  const auto other = session.spawn<Holder>({.isolated = true, .node = other_node(session)});
  SECTION("the one that answered") {
    holder.call<&Holder::keep>(owner.call<&Owner::give>(1.0).get(60s)).get(60s);
    const auto pid = holder.call<&Holder::pid>().get(60s);
    auto back = holder.call<&Holder::release>().get(60s);
    kill_it(pid);
    CHECK(sum(back.get(60s)) == 1.0 * kCount);
    back = {};
    CHECK(owns_nothing(owner));
  }
  SECTION("the one that asked") {
    holder.call<&Holder::keep>(owner.call<&Owner::give>(1.0).get(60s)).get(60s);
    other.call<&Holder::take>(holder).get(60s);
    CHECK(other.call<&Holder::total>().get(60s) == 1.0 * kCount);
    kill_it(other.call<&Holder::pid>().get(60s));
    CHECK(owns_nothing(owner));
    CHECK(eventually([&] { return holder.call<&Holder::borrowed>().get(60s) == 0; }, 60s));
  }
  SECTION("the one that asked, before it had the answer") {
    for (int i = 0; i < 20; ++i)
      holder.call<&Holder::keep>(owner.call<&Owner::give>(double(i)).get(60s)).get(60s);
    const auto pid = other.call<&Holder::pid>().get(60s);
    other.call<&Holder::take>(holder);
    kill_it(pid);
    holder.call<&Holder::release>().get(60s);
    CHECK(owns_nothing(owner));
    CHECK(eventually([&] { return holder.call<&Holder::borrowed>().get(60s) == 0; }, 60s));
  }
  SECTION("the owner") {
    const auto lost = owner.call<&Owner::give>(1.0).get(60s);
    kill_it(owner.call<&Owner::pid>().get(60s));
    const auto why = message_of<ObjectLost>([&] { lost.get(60s); });
    INFO(why);
    CHECK(why.find("the process that made it is gone: ") != std::string::npos);
  }
  CHECK(nothing_left(session));
}

}  // namespace references_test
