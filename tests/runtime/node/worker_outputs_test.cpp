// What workers have written, by the actors that were in them; and a worker that is asked for a dump.
#include "runtime/node/worker_outputs.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/node/death_watch.hpp"
#include "runtime/node/dump_request.hpp"
#include "runtime/wire/log_frames.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::node;
using Catch::Matchers::Contains;

namespace {

struct Outputs {
  EventLoop loop;
  test::TempFolder folder;
  WorkerOutputs outputs{loop};

  void begin(ProcessId process, ActorId actor, std::uint32_t life, const std::string& name = "") {
    outputs.began(StartWorker{process, "worker", ""});
    outputs.began(ActorBegins{actor, life, process, name});
  }
  /// All that is there once its process has ended, with "!" before what the node notes.
  std::string all(const std::string& actor, int life) {
    wire::LogPart part;
    const bool closed = test::eventually([&] {
      loop.after(std::chrono::milliseconds(1), [&] { loop.pause(); });
      loop.run();
      auto read = outputs.read({.id = "actor:" + actor, .attempt = life, .most_bytes = 1 << 20});
      if (!read) return false;
      part = *std::move(read);
      return part.closed;
    });
    if (!closed) return "not closed";
    std::string text;
    wire::read_log_frames(part.bytes, [&](const wire::LogFrame& frame) {
      if (frame.stream == wire::LogStream::kNote) text += "!";
      text.append(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
    }).value();
    return text;
  }
};

}  // namespace

TEST_CASE("the output of an actor is that of its worker, life for life, by its id and name") {
  Outputs f;
  f.outputs.open(f.folder.path() + "/workers");
  f.begin({1}, {0xa}, 1, "first");
  f.begin({2}, {0xa}, 2, "first");
  f.begin({3}, {0xb}, 1);
  f.outputs.wrote({1}, false, "one\n");
  f.outputs.wrote({2}, true, "two\n");
  f.outputs.wrote({1}, false, std::string(100'000, 'x') + "\n");  // more than a frame
  for (const ProcessId process : {ProcessId{1}, ProcessId{2}, ProcessId{3}})
    f.outputs.ended(process, "killed by signal 9");
  const std::string end = "!its process has ended: killed by signal 9\n";
  CHECK(f.all("first", 1) == "one\n" + std::string(100'000, 'x') + "\n" + end);
  CHECK(f.all("a", 2) == "two\n" + end);
  CHECK(f.all("a", 0) == "two\n" + end);  // the newest life
  CHECK(f.all("b", 1) == end);
  CHECK(f.outputs.read({.id = "actor:a", .attempt = 3}).error().code == ErrorCode::kUnavailable);
  CHECK(f.outputs.read({.id = "actor:c"}).error().code == ErrorCode::kUnavailable);
  CHECK(f.outputs.read({.id = "actor:"}).error().code == ErrorCode::kUnavailable);
  CHECK(f.outputs.running().empty());
}

// Lives of two jobs' actors were mixed: life 2 of the older one counted as the newest.
TEST_CASE("of actors that had one name the last one is meant") {
  Outputs f;
  f.outputs.open(f.folder.path() + "/workers");
  f.begin({9}, {0xa}, 1, "server");
  f.begin({8}, {0xa}, 2, "server");
  f.begin({7}, {0xb}, 1, "server");
  for (const ProcessId process : {ProcessId{9}, ProcessId{8}, ProcessId{7}}) {
    f.outputs.wrote(process, false, "process " + to_string(process) + "\n");
    f.outputs.ended(process, "exit code 0");
  }
  CHECK_THAT(f.all("server", 0), Contains("process 7\n"));
  CHECK_THAT(f.all("server", 1), Contains("process 7\n"));
  CHECK(f.outputs.read({.id = "actor:server", .attempt = 2}).error().code == ErrorCode::kUnavailable);
  CHECK_THAT(f.all("a", 0), Contains("process 8\n"));
}

TEST_CASE("the logs of the last workers that ended are kept, and none where there is no folder") {
  Outputs f;
  f.begin({1}, {0xa}, 1);
  f.outputs.wrote({1}, false, "one\n");
  CHECK(f.outputs.read({.id = "actor:a"}).error().code == ErrorCode::kRefused);
  f.outputs.open(f.folder.path() + "/workers");
  for (std::uint64_t i = 10; i < 10 + kKeptWorkers + 3; ++i) {
    f.begin({i}, {i}, 1);
    f.outputs.wrote({i}, false, "x\n");
    f.outputs.ended({i}, "exit code 0");
  }
  const std::string last = to_string(ActorId{10 + kKeptWorkers + 2});
  CHECK_THAT(f.all(last, 1), Contains("x\n"));
  CHECK(f.outputs.read({.id = "actor:a"}).ok());  // it runs
  CHECK(f.outputs.read({.id = "actor:c"}).error().code == ErrorCode::kUnavailable);
  CHECK(f.outputs.read({.id = "actor:d"}).ok());
  CHECK(f.outputs.running().size() == 1);
}

TEST_CASE("a worker that is asked through its lock's memory writes a dump there") {
  const test::TempFolder folder;
  const auto memory = DeathWatch::make_lock().value();
  REQUIRE(memory.size() >= bytes_with_dump_request());
  CHECK(is_dumped(memory));  // nothing was asked for
  REQUIRE(ask_for_dump(memory, folder.path()).ok());
  CHECK_FALSE(is_dumped(memory));
  REQUIRE(serve_dumps(UniqueFd(::dup(memory.fd()))).ok());
  CHECK(test::eventually([&] { return is_dumped(memory); }));
  const std::string file = folder.path() + "/stacks-" + std::to_string(::getpid()) + ".txt";
  CHECK_THAT(test::read_file(file), Contains("process " + std::to_string(::getpid())));
  std::filesystem::remove(file);
  REQUIRE(ask_for_dump(memory, folder.path()).ok());
  CHECK(test::eventually([&] { return is_dumped(memory); }));
  CHECK(std::filesystem::exists(file));
  CHECK(ask_for_dump(memory, std::string(5000, 'x')).error().code == ErrorCode::kRefused);
}
