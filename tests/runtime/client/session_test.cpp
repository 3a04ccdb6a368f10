// What a session checks before it asks its process for an actor.
#include "runtime/client/session.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <limits>

#include "tests/runtime/client/local_gate.hpp"

using namespace troupe;
using troupe::testing::LocalGate;

namespace {

struct Holder {
  Holder() = default;
  explicit Holder(std::string text) : bytes(std::move(text)) {}
  std::string bytes;
  std::size_t size() const { return bytes.size(); }
};
struct Picky {
  explicit Picky(int n) {
    if (n < 0) throw std::invalid_argument("no negative numbers");
  }
};

/// What waits is refused here, and the refusal names what does not.
struct Finder {
  std::string find() {
    try {
      this_actor().session().find<Holder>("the holder");
      return "";
    } catch (const BadConfig& error) {
      return error.what();
    }
  }
  Future<std::size_t> find_async() {
    Promise<std::size_t> size;
    this_actor()
        .session()
        .find_async<Holder>("the holder")
        .then([size](Result<ActorHandle<Holder>> holder) mutable {
          holder->call<&Holder::size>().then([size](Result<std::size_t> got) mutable { size.set(*got); });
        });
    return size.future();
  }
};

}  // namespace

TEST_CASE("a spawn says what it is") {
  LocalGate gate;
  const Session session(gate);
  const auto holder =
      session.spawn<Holder>({.num_cpus = 0.5, .isolated = true, .name = "the holder"}, "text");
  CHECK(holder.call<&Holder::size>().get() == 4);
  CHECK(gate.last_spawn.cpu_e4 == 5000);
  CHECK(gate.last_spawn.isolated);
  CHECK(gate.last_spawn.name == "the holder");
  CHECK(gate.last_spawn.type.find("Holder") != std::string::npos);
  CHECK(gate.last_spawn.label == gate.last_spawn.type);
  CHECK(gate.last_spawn.through_head());
  session.spawn<Holder>();
  CHECK_FALSE(gate.last_spawn.through_head());
}

TEST_CASE("a named actor is found") {
  LocalGate gate;
  const Session session(gate);
  session.spawn<Holder>({.name = "the holder"}, "12345");
  CHECK(session.find<Holder>("the holder").call<&Holder::size>().get() == 5);
  CHECK_THROWS_AS(session.find<Holder>("another"), Unavailable);
}

TEST_CASE("a light actor finds an actor without waiting") {
  // Story: find in a light actor was refused with a text about Future::get, and there was no other way.
  LocalGate gate;
  const Session session(gate);
  session.spawn<Holder>({.name = "the holder"}, "12345");
  const auto finder = session.spawn<Finder>();
  const std::string refused = finder.call<&Finder::find>().get();
  CHECK(refused.find("Session::find") != std::string::npos);
  CHECK(refused.find("use find_async") != std::string::npos);
  CHECK(finder.call<&Finder::find_async>().get() == 5);
  CHECK_THROWS_AS(session.find_async<Holder>("another").get(), Unavailable);
}

TEST_CASE("a forked child that uses its parent's session is told so") {
  // Story: a child that waited for an answer took those of its parent from the rings.
  LocalGate gate;
  const Session session(gate);
  const auto holder = session.spawn<Holder>();
  const auto code = [](auto&& use) {
    try {
      use();
      return 1;
    } catch (const BadConfig& error) {
      return std::string(error.what()).find("forked") == std::string::npos ? 2 : 0;
    }
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(code([&] { holder.call<&Holder::size>(); }) + 10 * code([&] { session.spawn<Holder>(); }) +
            50 * code([&] { session.kill(holder); }));
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(holder.call<&Holder::size>().get() == 0);
}

TEST_CASE("CPUs that are no number are refused where they are asked for") {
  // `num_cpus = inf` became a negative demand.
  LocalGate gate;
  const Session session(gate);
  for (const double cpus :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e7}) {
    CHECK_THROWS_AS(session.spawn<Holder>({.num_cpus = cpus}), BadConfig);
  }
  try {
    session.spawn<Holder>({.num_cpus = 1e300});
    FAIL("it is spawned");
  } catch (const BadConfig& error) {
    CHECK(error.info().why == "num_cpus = 1e+300");  // was: 300 digits
  }
}

TEST_CASE("GPUs are a part of one or whole ones, and for actors with a process of their own") {
  LocalGate gate;
  const Session session(gate);
  session.spawn<Holder>({.num_gpus = 0.25, .isolated = true});
  CHECK(gate.last_spawn.gpu_e4 == 2500);
  session.spawn<Holder>({.num_gpus = 2, .isolated = true});
  CHECK(gate.last_spawn.gpu_e4 == 20000);
  for (const double gpus : {-1.0, 1.5, 0.00001, 1025.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_AS(session.spawn<Holder>({.num_gpus = gpus, .isolated = true}), BadConfig);
  CHECK_THROWS_WITH(session.spawn<Holder>({.num_gpus = 1}),
                    Catch::Contains("shares its process") && Catch::Contains(".isolated = true"));
  CHECK_THROWS_WITH(session.spawn<Holder>({.num_gpus = 1, .isolated = true, .here = true}),
                    Catch::Contains("in this process"));
}

// Was: newlines and escape sequences of both went into logs, and each line of its output had a megabyte
// before it.
TEST_CASE("an actor's name and label are refused where they are given when no line could hold them") {
  LocalGate gate;
  const Session session(gate);
  const auto refused = [&](const ActorOptions& options) {
    try {
      session.spawn<Holder>(options);
    } catch (const Error& error) {
      return error.info().why;
    }
    return std::string("nothing");
  };
  CHECK(refused({.name = "a\nb"}) == "its name has a control character");
  CHECK(refused({.name = std::string(257, 'n')}) == "its name has 257 bytes, and 256 are the most");
  CHECK(refused({.label = "\x1b[2J"}) == "its label has a control character");
  CHECK(refused({.label = std::string(1'000'000, 'l')}) ==
        "its label has 1000000 bytes, and 256 are the most");
  CHECK(refused({.label = std::string(256, 'l')}) == "nothing");
}

TEST_CASE("arguments too large for the head are refused at the door, with the way around") {
  // They ended the head for good: what it could not store stopped its loop, and nodes sent it again.
  LocalGate gate;
  const Session session(gate);
  const std::string large(cluster::kMaxPayloadBytes + 1, 'x');
  for (const auto& options :
       {ActorOptions{.num_cpus = 1}, ActorOptions{.isolated = true}, ActorOptions{.name = "a"}}) {
    try {
      session.spawn<Holder>(options, large);
      FAIL("it did not throw");
    } catch (const LimitExceeded& error) {
      CHECK(std::string(error.what()).find("4194309 bytes or more are above the limit of 4194304") !=
            std::string::npos);
      CHECK(std::string(error.what()).find("shared memory") != std::string::npos);
    }
  }
  CHECK(session.spawn<Holder>({}, large).call<&Holder::size>().get() == large.size());
}

TEST_CASE("get_if_exists gives the actor of that name, or spawns it") {
  LocalGate gate;
  const Session session(gate);
  const ActorOptions options{.name = "the one", .get_if_exists = true};
  const auto first = session.spawn<Holder>(options, "mine");
  CHECK(session.spawn<Holder>(options, "another") == first);
  CHECK(first.call<&Holder::size>().get() == 4);
  CHECK(gate.spawns == 1);
  // Its holder is just being started: nobody is found, and the spawn is refused. So it is looked up again.
  gate.hides_names = 1;
  const auto late = session.spawn_async<Holder>(options, "third");
  CHECK(gate.spawns == 2);
  CHECK_FALSE(late.ready());
  REQUIRE(gate.delayed.size() == 1);
  gate.delayed[0]();
  CHECK(late.get() == first);
  // Nobody waits any more: the spawn that is under way is withdrawn.
  gate.answers_spawns = false;
  const auto unwanted = session.spawn_async<Holder>(ActorOptions{.name = "two", .get_if_exists = true}, "x");
  unwanted.state()->cancel({ErrorCode::kTimeout, "too late", "", ""});
  CHECK(gate.cancelled == 1);
  CHECK_THROWS_AS(session.spawn<Holder>({.get_if_exists = true}, "x"), BadConfig);
  CHECK_THROWS_AS(session.spawn<Holder>({.here = true, .name = "x", .get_if_exists = true}, "x"), BadConfig);
}

TEST_CASE("a constructor that throws is the spawner's error") {
  LocalGate gate;
  const Session session(gate);
  try {
    session.spawn<Picky>({}, -1);
    FAIL("it did not throw");
  } catch (const TaskFailed& error) {
    CHECK(error.exception_type() == "std::invalid_argument");
    CHECK(error.exception_message() == "no negative numbers");
  }
}

TEST_CASE("a spawn that nobody waits for any more is cancelled once, unless it was answered") {
  LocalGate gate;
  gate.answers_spawns = false;
  const auto spawn = Session(gate).spawn_async<Holder>();
  const ErrorInfo why{ErrorCode::kTimeout, "an actor was not started", "", ""};
  spawn.state()->cancel(why);
  spawn.state()->cancel(why);
  CHECK(gate.cancelled == 1);
  CHECK_THROWS_AS(spawn.get(), Timeout);
  const auto answered = Session(gate).spawn_async<Holder>();
  answered.state()->resolve(wire::encode(ActorAddress{{1}, {2}, {3}}));
  answered.state()->cancel(why);
  CHECK(gate.cancelled == 1);
  CHECK(answered.get().address().actor == ActorId{3});
}
