/// The flight recorder: what it remembers of a group, its dumps as text and as files, and what is said of
/// ranks that diverged.

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "collectives/flight/analysis.hpp"
#include "collectives/flight/dump_files.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::flight;
using namespace troupe::collectives::testing;
using troupe::test::contains;
using troupe::test::TempFolder;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNoon = 1'700'000'000 * kSecond;

/// A dump as a rank of `size` would write it, at noon.
Dump dump_of(int rank, int size, std::vector<Operation> operations = {}) {
  Dump dump{.group = "run-1f", .generation = {1, 3}, .backend = "native", .rank = rank, .size = size};
  dump.host = "one";
  dump.pid = 40 + rank;
  dump.formed_ns = kNoon - 100 * kSecond;
  dump.dumped_ns = kNoon;
  dump.monotonic_ns = 5000 * kSecond;
  dump.reason = "asked";
  for (Operation& op : operations) {
    op.number = ++dump.launched;
    if (op.call.sequence == 0 && !is_message(op.call.kind)) op.call.sequence = ++dump.collectives;
  }
  dump.operations = std::move(operations);
  return dump;
}

Operation op_of(const Op& call, State state = State::kCompleted, double ago_s = 20) {
  Operation op{.call = call, .state = state};
  op.launched_ns = kNoon - static_cast<std::int64_t>(ago_s * 1e9);
  op.took_ns = state == State::kCompleted ? 1000 : 0;
  if (state == State::kFailed) {
    op.took_ns = static_cast<std::int64_t>(ago_s * 1e9);
    op.error = "no rank made progress";
  }
  return op;
}
const Op kSum{.kind = OpKind::kAllReduce, .count = 100};
const Op kShare{.kind = OpKind::kBroadcast, .peer = 2, .count = 100};
const Op kMeet{};

Report only(std::vector<Dump> dumps) {
  auto reports = analyse(std::move(dumps));
  REQUIRE(reports.size() == 1);
  return reports.front();
}

/// A group of one rank whose barriers are over at once, and that has nothing else.
class Lonely final : public ProcessGroup {
 public:
  struct Over final : Work {
    bool advance(Duration) override { return true; }
  };
  Lonely() : ProcessGroup({.backend = "lonely", .generation = {1, 1}, .leaves = {{0, 1}}}) {}
  std::string abort_reason() const override { return reason_; }

 private:
  std::shared_ptr<Work> launch(std::span<const Op> ops) override {
    for (const Op& op : ops) {
      if (op.kind != OpKind::kBarrier) refuse(name_of(op.kind));
    }
    return std::make_shared<Over>();
  }
  void stop(const std::string& reason) override {
    if (reason_.empty()) reason_ = reason;
  }

  std::string reason_;
};

void fail(FlightRecorder& recorder, std::uint64_t number, const std::string& error) {
  recorder.ended(number, 1, Duration(1), error);
  recorder.dump_failure(error);
}

/// A variable of the environment that is what it was when the test is over.
class Variable {
 public:
  explicit Variable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name); value != nullptr) before_ = value;
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Runs `body` on threads over recorded native groups, and returns what the dumps they leave say.
std::vector<Report> fly(int size, const Layout& layout, const RankBody& body) {
  const TempFolder folder;
  run_threads(options_of(size, layout), [&](ProcessGroup& group) {
    record(group, {.group = "test", .folder = folder.path()});
    body(group);
  });
  std::vector<Dump> dumps;
  for (const auto& file : find_dumps(folder.path()).value()) dumps.push_back(read_dump(file).value());
  return analyse(std::move(dumps));
}

}  // namespace

TEST_CASE("the ring keeps the last 1,000 operations of every kind") {
  const auto group = std::make_shared<Lonely>();
  CHECK(group->recorder() == nullptr);
  const auto recorder = record(*group, {.group = "ring", .folder = ""});
  REQUIRE(group->recorder() == recorder);
  for (int i = 0; i < 2500; ++i) group->barrier()->wait();
  const auto open = group->barrier();
  const Dump dump = recorder->snapshot("asked");
  CHECK(dump.launched == 2501);
  CHECK(dump.collectives == 2501);
  REQUIRE(dump.operations.size() == kRemembered);
  for (std::size_t i = 0; i < 1000; ++i) {
    CHECK(dump.operations[i].number == 1502 + i);
    CHECK(dump.operations[i].call.sequence == 1502 + i);
    CHECK(dump.operations[i].state == (i == 999 ? State::kLaunched : State::kCompleted));
    CHECK(dump.operations[i].launched_ns >= dump.formed_ns - kSecond);
    CHECK(dump.operations[i].launched_ns + dump.operations[i].took_ns <= dump.dumped_ns);
  }
  // An operation that has left the ring is nobody else's.
  for (int i = 0; i < 1000; ++i) group->barrier();
  open->wait();
  for (const auto& op : recorder->snapshot("asked").operations) CHECK(op.state == State::kLaunched);
}

TEST_CASE(
    "where a folder for timelines is named, the end of a group leaves far more of its operations there") {
  const TempFolder folder;
  const Variable timeline("TROUPE_TIMELINE");
  const auto left = [&](const FlightOptions& options, const std::string& group) {
    {
      const auto lonely = std::make_shared<Lonely>();
      record(*lonely, options);
      for (int i = 0; i < 2500; ++i) lonely->barrier()->wait();
    }
    const std::string file = folder / (group + "-g1.1/rank-0.flight");
    return std::filesystem::exists(file) ? read_dump(file).value().operations.size() : 0;
  };
  ::unsetenv("TROUPE_TIMELINE");
  CHECK(left({.group = "none", .folder = folder.path()}, "none") == 0);
  CHECK(left({.group = "option", .folder = "", .timeline = folder.path()}, "option") == 2500);
  ::setenv("TROUPE_TIMELINE", folder.path().c_str(), 1);
  CHECK(left({.group = "variable", .folder = ""}, "variable") == 2500);
  const auto lonely = std::make_shared<Lonely>();  // of a process that is killed before its group ends
  record(*lonely, {.group = "killed"});
  lonely->barrier()->wait();
  FlightRecorder::leave_timelines();
  CHECK(read_dump(folder / "killed-g1.1/rank-0.flight").value().operations.size() == 1);
  const auto failed = std::make_shared<Lonely>();
  const auto recorder = record(*failed, {.group = "failed", .folder = ""});
  failed->barrier()->wait();
  recorder->dump_failure("rank 1 died");
  CHECK(read_dump(folder / "failed-g1.1/rank-0.flight").value().reason == "rank 1 died");
  // Was: the oldest went, as dumps of failures do.
  for (std::size_t i = 0; i < kKeptGroups + 5; ++i) {
    const std::string group = "kept" + std::to_string(i);
    CHECK(left({.group = group, .folder = ""}, group) == 2500);
  }
  CHECK(std::filesystem::exists(folder / "kept0-g1.1/rank-0.flight"));
  CHECK(left({.group = "off", .folder = "", .timeline = ""}, "off") == 0);
}

TEST_CASE("a call that the group refuses is remembered, keeps its error and gives its number back") {
  const TempFolder folder;
  const auto group = std::make_shared<Lonely>();
  record(*group, {.folder = folder.path()});
  group->barrier()->wait();
  float value = 0;
  CHECK_THROWS_AS(group->all_reduce({.data = &value, .count = 1}, ReduceOp::kMax), BadConfig);
  CHECK_THROWS_AS(group->send({.data = &value, .count = 1}, 0, 7), BadConfig);
  group->barrier()->wait();
  const auto operations = group->recorder()->snapshot("asked").operations;
  REQUIRE(operations.size() == 4);
  CHECK(to_string(operations[1].call) == "all_reduce(max, 1 x f32)");
  CHECK(operations[1].state == State::kRefused);
  CHECK(contains(operations[1].error, "the backend lonely does not have it"));
  CHECK(to_string(operations[2].call) == "send(1 x f32, to 0, tag 7)");
  CHECK(operations[3].call.sequence == 2);
  CHECK_FALSE(find_dumps(folder.path()).ok());  // nothing failed that others wait for
}

TEST_CASE("a recorded native group computes what it did, and its tree buffers pass through") {
  const auto reports = fly(3, {.leaves = {{0, 2}, {2, 4}, {4, 5}}}, [](ProcessGroup& group) {
    CHECK(group.backend() == "native");
    CHECK(group.leaves().size() == (group.rank() == 2 ? 1 : 2));
    const TreeBuffer tree = group.allocate_tree(10, DType::kFloat32);
    CHECK(tree.index == 0);
    auto* values = reinterpret_cast<float*>(tree.partials[0]);
    for (int i = 0; i < 10; ++i) values[i] = static_cast<float>(i + group.rank());
    auto work = group.all_reduce_tree(tree, ReduceOp::kSum);
    CHECK_FALSE(work->duration().has_value());
    work->wait();
    work->wait();
    CHECK(work->is_completed());
    CHECK(work->exception() == nullptr);
    CHECK(work->duration().has_value());
    for (int i = 0; i < 10; ++i) CHECK(values[i] == static_cast<float>(3 * i + 3));
    std::vector<std::int64_t> more{group.rank(), 5};
    while (!group.all_reduce(std::span(more))->wait_for(std::chrono::seconds(60))) {
    }
    CHECK(more == std::vector<std::int64_t>{3, 15});
    group.broadcast(std::span(more), 1)->wait();
    group.barrier()->wait();
    group.recorder()->dump("the test asks").value();
  });
  REQUIRE(reports.size() == 1);
  const Report& report = reports[0];
  CAPTURE(to_text(report));
  CHECK(report.findings.empty());
  CHECK(report.agreed_through == 4);
  CHECK(report.ranks == std::vector<int>{0, 1, 2});
  REQUIRE(report.table.size() == 1);
  CHECK(report.table[0].cells ==
        std::vector<std::string>{"all_reduce_tree(sum, 10 x f32, buffer 0) completed",
                                 "all_reduce(sum, 2 x i64) completed", "broadcast(2 x i64, root 1) completed",
                                 "barrier() completed"});
  CHECK(to_line(report) == "test 1.1: all ranks agree through #4");
}

TEST_CASE("ranks of a native group that call different things leave dumps which say so") {
  const auto reports = fly(3, {}, [](ProcessGroup& group) {
    float value[4] = {};
    group.barrier()->wait();
    if (group.rank() == 1) {
      group.reduce({.data = value, .count = 4}, ReduceOp::kSum, 1)->wait();
    } else {
      group.all_reduce({.data = value, .count = 4}, ReduceOp::kSum)->wait();
    }
  });
  REQUIRE(reports.size() == 1);
  const std::string text = to_text(reports[0]);
  CAPTURE(text);
  REQUIRE(reports[0].findings.size() == 1);
  CHECK(reports[0].findings[0].kind == FindingKind::kMismatch);
  CHECK(reports[0].findings[0].ranks == std::vector<int>{1});
  CHECK(contains(text,
                 "at #2 ranks 0, 2 called all_reduce(sum, 4 x f32) and rank 1 reduce(sum, 4 x f32, root 1)"));
  CHECK(contains(text, "all ranks agree through #1"));
}

TEST_CASE("a rank that never comes is named, with what it did instead") {
  for (const auto& nodes : {std::vector<std::vector<int>>{{0, 1, 2}}, {{0, 1}, {2}}}) {
    std::atomic<int> over{0};
    const Layout layout{.nodes = nodes, .timeout = std::chrono::milliseconds(500)};
    const auto reports = fly(3, layout, [&](ProcessGroup& group) {
      float value[4] = {};
      group.batch({Op::barrier().within(std::chrono::seconds(60))})->wait();  // all are there
      if (group.rank() == 2) {
        test::yield_until([&] { return over.load() >= 2; });
        group.abort("the others gave up");  // too late: the group is aborted already
        group.recorder()->dump("the test asks").value();
        return;
      }
      try {
        group.all_reduce({.data = value, .count = 4}, ReduceOp::kSum)->wait();
      } catch (const Error&) {
        ++over;
        throw;
      }
    });
    REQUIRE(reports.size() == 1);
    const std::string text = to_text(reports[0]);
    CAPTURE(text);
    REQUIRE(reports[0].findings.size() == 1);
    CHECK(reports[0].findings[0].kind == FindingKind::kMissing);
    CHECK(reports[0].findings[0].sequence == 2);
    CHECK(reports[0].findings[0].ranks == std::vector<int>{2});
    CHECK(contains(text, "rank 2 never reached #2 all_reduce(sum, 4 x f32); ranks 0, 1 waited in it for"));
    CHECK(contains(text, "rank 2: its last is #1 barrier(), completed"));
    CHECK(contains(text, "no rank made progress"));
  }
}

TEST_CASE("an abort leaves a dump on who aborts, once") {
  const TempFolder folder;
  const auto group = std::make_shared<Lonely>();
  record(*group, {.group = "a/b c", .folder = folder.path()});
  group->barrier()->wait();
  group->abort("the loss is not a number");
  const auto files = find_dumps(folder.path()).value();
  REQUIRE(files == std::vector<std::string>{folder / "a-b-c-g1.1/rank-0.flight"});
  const Dump dump = read_dump(files[0]).value();
  CHECK(dump.reason == "this rank aborted the group: the loss is not a number");
  CHECK(dump.group == "a/b c");
  CHECK(dump.pid == ::getpid());
  std::filesystem::remove(files[0]);
  group->abort("again");
  CHECK_FALSE(std::filesystem::exists(files[0]));
}

TEST_CASE("a rank that sees an abort outside of any operation, and gives up, leaves a dump of why") {
  const TempFolder folder;
  const auto group = std::make_shared<Lonely>();
  group->abort("rank 1 died");  // nobody records yet, as if another rank had done it
  record(*group, {.group = "a", .folder = folder.path()});
  group->abort("rank 0 failed in step 3");
  const Dump dump = read_dump(folder / "a-g1.1/rank-0.flight").value();
  CHECK(dump.reason == "this rank left the group, which was aborted: rank 1 died");
}

TEST_CASE("of many failures the first leaves the dump") {
  const TempFolder folder;
  const Lonely lonely;
  const std::string path = folder / "group-g1.1/rank-0.flight";
  FlightRecorder recorder(lonely, {.folder = folder.path()});
  const auto first = recorder.launch({.sequence = 1}, {}), second = recorder.launch({.sequence = 2}, {});
  recorder.waiting(first);
  fail(recorder, first, "lost rank 1");
  const Dump dump = read_dump(path).value();
  CHECK(dump.reason == "lost rank 1");
  CHECK(dump.operations[0].state == State::kFailed);
  CHECK(dump.operations[0].error == "lost rank 1");
  CHECK(dump.operations[1].state == State::kLaunched);
  std::filesystem::remove(path);
  fail(recorder, second, std::string(5000, 'x'));
  fail(recorder, first, "another end");  // it has ended
  recorder.ended(first, 1, Duration(1));
  recorder.waiting(recorder.launch({.sequence = 3}, {}));
  CHECK_FALSE(std::filesystem::exists(path));
  const auto operations = recorder.snapshot("asked").operations;
  CHECK(operations[0].state == State::kFailed);
  CHECK(operations[0].error == "lost rank 1");
  CHECK(operations[2].state == State::kWaiting);
  CHECK(operations[1].error == std::string(kMaxErrorBytes, 'x'));
  CHECK(recorder.dump("asked").value() == path);
}

/// A rank computed for longer than the group's timeout between two buckets. It had launched the bucket that
/// the others waited in, and launched the next once the group was aborted: the dumps showed equal calls on
/// all ranks, and the first analysis found nobody who diverged. Its ranks are processes: as threads of one,
/// those that wait could move what it launched.
TEST_CASE("a rank that launched an operation and never waited for it is named") {
  const TempFolder folder;
  const auto dumps_there = [&] { return find_dumps(folder.path()).value_or({}); };
  const Layout layout{.timeout = std::chrono::milliseconds(1200)};
  const auto said = run_forked(options_of(3, layout), [&](const std::shared_ptr<ProcessGroup>& group) {
    record(*group, {.group = "test", .folder = folder.path()});
    const TreeBuffer first = group->allocate_tree(10, DType::kFloat32);
    const TreeBuffer second = group->allocate_tree(20, DType::kFloat32);
    auto work = group->all_reduce_tree(first, ReduceOp::kSum);
    if (group->rank() == 2) test::yield_until([&] { return dumps_there().size() >= 2; });
    try {
      group->all_reduce_tree(second, ReduceOp::kSum);
      work->wait();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  });
  CAPTURE(said);
  std::vector<Dump> dumps;
  for (const auto& file : dumps_there()) dumps.push_back(read_dump(file).value());
  const auto reports = analyse(std::move(dumps));
  REQUIRE(reports.size() == 1);
  const std::string text = to_text(reports[0]);
  CAPTURE(text);
  REQUIRE(reports[0].findings.size() == 1);
  CHECK(reports[0].findings[0].kind == FindingKind::kHeldUp);
  CHECK(reports[0].findings[0].ranks == std::vector<int>{2});
  CHECK(contains(
      text,
      "rank 2 launched #1 all_reduce_tree(sum, 10 x f32, buffer 0) and never waited for it; ranks 0, 1"));
  CHECK(contains(text, "its call of all_reduce_tree(sum, 20 x f32, buffer 1) was refused\n"));
  CHECK(reports[0].table.size() == 2);
}

TEST_CASE("dumps on demand of all recorders, while they record and come and go") {
  const TempFolder folder;
  std::atomic<int> over{0};
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto group = std::make_shared<Lonely>();
        record(*group, {.group = "all" + std::to_string(t)});
        for (int k = 0; k < 300; ++k) group->barrier()->wait();
      }
      ++over;
    });
  }
  const auto kept = std::make_shared<Lonely>();
  record(*kept, {.group = "kept"});
  kept->barrier()->wait();
  std::vector<std::string> paths;
  do {
    paths = FlightRecorder::dump_all("asked", folder.path()).value();
  } while (over.load() < 2);
  for (auto& thread : threads) thread.join();
  REQUIRE_FALSE(paths.empty());
  CHECK(read_dump(folder / "kept-g1.1/rank-0.flight").value().launched == 1);
  for (const auto& file : find_dumps(folder.path()).value()) CHECK(read_dump(file).ok());
  CHECK_FALSE(FlightRecorder::dump_all("asked", "/proc/no/such").ok());
}

TEST_CASE("a dump as text is what the README says, and comes back the same") {
  Dump dump = dump_of(2, 4, {op_of(kSum), op_of(kShare, State::kFailed, 1.5)});
  dump.operations[0].call.how.exact = false;
  dump.operations[1].error = "lost\tconnection\nto rank 1";
  const std::string text = encode(dump);
  CHECK(
      text ==
      "troupe-flight 1\ngroup run-1f\ngeneration 1.3\nbackend native\nrank 2\nsize 4\nhost one\npid 42\n"
      "formed_ns 1699999900000000000\ndumped_ns 1700000000000000000\nmonotonic_ns 5000000000000\n"
      "reason asked\nlaunched 2\ncollectives 2\n"
      "columns\tnumber\tsequence\tcall\top\torder\tdtype\tcount\tat\ttag\tstate\tlaunched_ns\ttook_"
      "ns\terror\n"
      "1\t1\tall_reduce\tsum\tany\tf32\t100\t0\t0\tcompleted\t1699999980000000000\t1000\t\n"
      "2\t2\tbroadcast\tsum\texact\tf32\t100\t2\t0\tfailed\t1699999998500000000\t1500000000\tlost connection "
      "to rank 1\nend 2\n");
  const Dump back = parse_dump(text, "f").value();
  CHECK(encode(back) == text);
  CHECK(same_call(back.operations[0].call, dump.operations[0].call));
  CHECK(back.operations[1].state == State::kFailed);
  CHECK(back.generation == Generation{1, 3});
}

TEST_CASE("a dump that is cut short anywhere is refused with its file and line") {
  const std::string text = encode(dump_of(0, 2, {op_of(kSum), op_of(kMeet), op_of(kShare)}));
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto parsed = parse_dump(std::string_view(text).substr(0, length), "some/rank-0.flight");
    REQUIRE_FALSE(parsed.ok());
    CHECK(contains(parsed.error().message(), "some/rank-0.flight: line "));
  }
  const auto says = [&](const std::string& from, const std::string& to) {
    std::string broken = text;
    broken.replace(broken.find(from), from.size(), to);
    const auto parsed = parse_dump(broken, "f");
    return parsed.ok() ? "fine" : parsed.error().message();
  };
  CHECK(contains(says("flight 1", "flight 2"), "line 1: it is not \"troupe-flight 1\""));
  CHECK(contains(says("rank 0", "rank 2"), "line 6: a group of that size does not have that rank"));
  CHECK(contains(says("\tbarrier", "\tbarriers"), "line 17: no call is called \"barriers\""));
  CHECK(contains(says("\tcompleted", ""), "line 16: it has 12 columns and not 13"));
  CHECK(contains(says("2\t2\tbarrier", "1\t1\tbarrier"), "line 17: its number is out of order"));
  CHECK(contains(says("end 3", "end 2"), "line 19: operations are missing"));
  CHECK(contains(says("end 3\n", "end 3\nmore\n"), "there is more after it"));
  CHECK(contains(says("pid 40", "pid 4294967336"), "line 8: pid is not a number from 0 to 2147483647"));
  CHECK(says("reason asked", "reason whatever") == "fine");
}

TEST_CASE("dumps are this user's alone, whole, and no more than twenty groups'") {
  const TempFolder folder;
  const std::string into = folder / "deep/flight";
  std::string path;
  for (std::uint32_t counter = 1; counter <= 25; ++counter) {
    Dump dump = dump_of(0, 2);
    dump.generation.counter = counter;
    path = write_dump(into, dump).value();
    dump.rank = 1;
    REQUIRE(write_dump(into, dump).ok());
    // File times have a grain: make the order plain.
    const auto group = std::filesystem::path(path).parent_path();
    std::filesystem::last_write_time(
        group, std::filesystem::file_time_type::min() + std::chrono::hours(1'000'000 + counter));
  }
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  REQUIRE(::stat(into.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(find_dumps(into).value().size() == 2 * kKeptGroups);
  CHECK_FALSE(std::filesystem::exists(into + "/run-1f-g1.5"));
  CHECK(std::filesystem::exists(into + "/run-1f-g1.6/rank-1.flight"));

  // What is not a dump stays, and so does its folder.
  std::ofstream(into + "/run-1f-g1.6/notes.txt") << "mine";
  std::filesystem::create_directory(into + "/photos");
  std::filesystem::last_write_time(into + "/run-1f-g1.6", std::filesystem::file_time_type::min());
  Dump dump = dump_of(0, 2);
  dump.generation.counter = 26;
  REQUIRE(write_dump(into, dump).ok());
  CHECK(std::filesystem::exists(into + "/run-1f-g1.6/notes.txt"));
  CHECK_FALSE(std::filesystem::exists(into + "/run-1f-g1.6/rank-1.flight"));
  CHECK(std::filesystem::exists(into + "/photos"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(into))
    CHECK(entry.path().extension() != ".tmp");

  std::filesystem::permissions(into, std::filesystem::perms::all);
  const auto refused = write_dump(into, dump);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::kRefused);
}

// Was: twenty runs that ended as they should pushed out the dumps of the failure before them.
TEST_CASE("dumps of failures outlive those of normal ends") {
  const TempFolder folder;
  const std::string into = folder / "flight";
  for (std::uint32_t counter = 1; counter <= 30; ++counter) {
    Dump dump = dump_of(0, 2);
    dump.generation.counter = counter;
    dump.reason = counter == 1 ? "a collective timed out"
                               : "this rank aborted the group: the trainer of rank 0 was told to end";
    const std::string path = write_dump(into, dump).value();
    if (counter == 2) {  // one rank failed: so did the group
      dump.rank = 1;
      dump.reason = "this rank aborted the group: rank 1 failed in step 3";
      REQUIRE(write_dump(into, dump).ok());
    }
    std::filesystem::last_write_time(
        std::filesystem::path(path).parent_path(),
        std::filesystem::file_time_type::min() + std::chrono::hours(1'000'000 + counter));
  }
  CHECK(std::filesystem::exists(into + "/run-1f-g1.1/rank-0.flight"));
  CHECK(std::filesystem::exists(into + "/run-1f-g1.2/rank-1.flight"));
  CHECK_FALSE(std::filesystem::exists(into + "/run-1f-g1.3"));
  CHECK_FALSE(std::filesystem::exists(into + "/run-1f-g1.25"));
  CHECK(std::filesystem::exists(into + "/run-1f-g1.26/rank-0.flight"));
  CHECK(std::filesystem::exists(into + "/run-1f-g1.30/rank-0.flight"));
}

// Was: each trial of a sweep that had ended said where its last collectives were, as if it had failed.
TEST_CASE("a trainer that is told to end leaves a dump if its operations are not all complete") {
  const TempFolder folder;
  const auto ends = [&](const std::string& name, const std::string& reason, bool waits) {
    const auto group = std::make_shared<Lonely>();
    record(*group, {.group = name, .folder = folder.path()});
    const auto work = group->barrier();
    if (waits) work->wait();
    group->abort(reason);
    return std::filesystem::exists(folder / (name + "-g1.1/rank-0.flight"));
  };
  CHECK_FALSE(ends("done", "the trainer of rank 0 was told to end", true));
  CHECK(ends("within", "the trainer of rank 0 was told to end", false));
  CHECK(ends("failed", "Digits::loss threw: no such class", true));
  CHECK(ends("over", "the generation is over", true));
}

TEST_CASE("TROUPE_FLIGHT_FOLDER says where dumps go, and empty that there are none") {
  const TempFolder folder;
  const Variable flight("TROUPE_FLIGHT_FOLDER"), own("TROUPE_FOLDER"), state("XDG_STATE_HOME"), home("HOME");
  ::setenv("TROUPE_FLIGHT_FOLDER", (folder / "here").c_str(), 1);
  CHECK(default_flight_folder() == folder / "here");
  Lonely here;
  record(here, {.group = "env"});
  here.abort("why");
  CHECK(std::filesystem::exists(folder / "here/env-g1.1/rank-0.flight"));
  ::setenv("TROUPE_FLIGHT_FOLDER", "", 1);
  CHECK(default_flight_folder().empty());
  const auto group = std::make_shared<Lonely>();
  record(*group);
  group->abort("why");
  CHECK(group->recorder()->dump("asked").error().code == ErrorCode::kBadConfig);
  ::unsetenv("TROUPE_FLIGHT_FOLDER");
  ::setenv("TROUPE_FOLDER", "/keys", 1);
  CHECK(default_flight_folder() == "/keys/flight");  // was: dumps of every cluster were in one folder
  ::unsetenv("TROUPE_FOLDER");
  ::setenv("XDG_STATE_HOME", "/state", 1);
  CHECK(default_flight_folder() == "/state/troupe/flight");
  ::unsetenv("XDG_STATE_HOME");
  ::setenv("HOME", "/home/ann", 1);
  CHECK(default_flight_folder() == "/home/ann/.local/state/troupe/flight");
  ::unsetenv("HOME");
  CHECK(default_flight_folder().empty());
}

TEST_CASE("ranks that agree are said to agree, as far as every ring goes back") {
  Dump late = dump_of(1, 2, {op_of(kSum), op_of(kShare), op_of(kMeet)});
  late.operations.erase(late.operations.begin());
  const Report report = only({dump_of(0, 2, {op_of(kSum), op_of(kShare), op_of(kMeet)}), late});
  CHECK(report.findings.empty());
  CHECK(to_line(report) == "run-1f 1.3: all ranks agree through #3 (compared from #2)");
  // A healthy group is not dumped at one instant: a rank that is a little ahead has not diverged.
  const Report ahead =
      only({dump_of(0, 2, {op_of(kSum), op_of(kMeet, State::kWaiting, 0.01)}), dump_of(1, 2, {op_of(kSum)})});
  CHECK(ahead.findings.empty());
  CHECK(ahead.agreed_through == 1);
}

TEST_CASE("the fewer ranks of a mismatch are named, and the table shows where") {
  std::vector<Dump> dumps;
  dumps.reserve(6);
  for (int r = 0; r < 6; ++r) {
    dumps.push_back(
        dump_of(r, 6, {op_of(kSum), op_of(kMeet), op_of(r == 4 ? kShare : kSum, State::kFailed)}));
  }
  const Report report = only(dumps);
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].ranks == std::vector<int>{4});
  CHECK(report.findings[0].text ==
        "at #3 ranks 0-3, 5 called all_reduce(sum, 100 x f32) and rank 4 broadcast(100 x f32, root 2)");
  REQUIRE(report.table.size() == 2);
  CHECK(report.table[0].ranks == std::vector<int>{0, 1, 2, 3, 5});
  CHECK(report.table[1].cells.back() == "broadcast(100 x f32, root 2) failed");
  CHECK(contains(to_text(report),
                 "  #3  all_reduce(sum, 100 x f32) failed     broadcast(100 x f32, root 2) failed"));
  // Two against two: nobody can say who is wrong.
  CHECK(only({dump_of(0, 2, {op_of(kSum)}), dump_of(1, 2, {op_of(kMeet)})}).findings[0].ranks ==
        std::vector<int>{0, 1});
  // Each argument counts.
  for (int which = 0; which < 5; ++which) {
    Op other = kShare;
    if (which == 0) other.count = 99;
    if (which == 1) other.dtype = DType::kInt32;
    if (which == 2) other.peer = 1;
    if (which == 3) other.how.exact = false;
    if (which == 4) other.how.op = ReduceOp::kMax;
    CHECK(only({dump_of(0, 2, {op_of(kShare)}), dump_of(1, 2, {op_of(other)})}).findings.size() == 1);
  }
}

TEST_CASE("ranks that stopped are named with how far they came") {
  const Report report = only({
      dump_of(0, 4, {op_of(kMeet), op_of(kShare), op_of(kSum, State::kWaiting, 12.3)}),
      dump_of(1, 4, {op_of(kMeet), op_of(kShare), op_of(kSum, State::kLaunched, 12.1)}),
      dump_of(2, 4, {op_of(kMeet), op_of(kShare, State::kCompleted, 15)}),
      dump_of(
          3, 4,
          {op_of(kMeet), op_of({.kind = OpKind::kRecv, .peer = 0, .tag = 7, .count = 5}, State::kWaiting)}),
  });
  CAPTURE(to_text(report));
  REQUIRE(report.findings.size() == 1);
  // Rank 3 stopped first: what came after it is its fault.
  CHECK(report.findings[0].sequence == 2);
  CHECK(report.findings[0].ranks == std::vector<int>{3});
  CHECK(report.findings[0].details ==
        std::vector<std::string>{
            "rank 3: its last is #1 barrier(), completed 20.0 s before its dump; it waited in "
            "recv(5 x f32, from 0, tag 7) for 20.0 s"});

  const Report two = only({
      dump_of(0, 3, {op_of(kMeet), op_of(kSum, State::kWaiting, 12.3)}),
      dump_of(1, 3, {op_of(kMeet), op_of(kSum, State::kLaunched, 12.1)}),
      dump_of(2, 3, {op_of(kMeet, State::kCompleted, 15)}),
  });
  REQUIRE(two.findings.size() == 1);
  CHECK(two.findings[0].text ==
        "rank 2 never reached #2 all_reduce(sum, 100 x f32); rank 0 waited in it for 12.3 s; rank 1 launched "
        "it and did not wait for it");
  CHECK(two.findings[0].details ==
        std::vector<std::string>{"rank 2: its last is #1 barrier(), completed 15.0 s before its dump"});

  // A dump from before the others launched proves nothing, and says so.
  Dump early = dump_of(1, 2, {op_of(kMeet, State::kCompleted, 40)});
  early.dumped_ns -= 30 * kSecond;
  CHECK(contains(to_text(only({dump_of(0, 2, {op_of(kMeet), op_of(kSum, State::kFailed, 12)}), early})),
                 "it was dumped before the others launched that: dump it again"));
}

TEST_CASE("ranks without a dump are named") {
  const Report report = only({dump_of(1, 4, {op_of(kSum, State::kFailed, 3)})});
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].kind == FindingKind::kNoDump);
  CHECK(report.findings[0].ranks == std::vector<int>{0, 2, 3});
  CHECK(contains(to_text(report), "there is no dump of ranks 0, 2, 3"));
  CHECK(contains(to_text(report), "failed on rank 1: #1 all_reduce(sum, 100 x f32): no rank made progress"));
}

TEST_CASE("generations, groups and runs are not mixed") {
  Dump next = dump_of(0, 1, {op_of(kMeet)});
  next.generation = {1, 4};
  next.dumped_ns += kSecond;
  Dump other = dump_of(0, 1, {op_of(kSum)});
  other.group = "pipeline";
  other.dumped_ns -= kSecond;
  const auto reports = analyse({other, dump_of(0, 1), next});
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].generation == Generation{1, 4});  // the newest first
  CHECK(reports[2].group == "pipeline");

  // A run with the same name, an hour ago: its dump of rank 1 is still there.
  Dump stale = dump_of(1, 2, {op_of(kSum)});
  stale.formed_ns -= 3600 * kSecond;
  stale.dumped_ns -= 3600 * kSecond;
  const Report report = only({dump_of(0, 2, {op_of(kMeet)}), stale});
  CHECK(report.ranks == std::vector<int>{0});
  CHECK(contains(to_text(report), "left out rank 1: its dump is older"));
  Dump before = dump_of(0, 1, {op_of(kSum)});
  before.dumped_ns -= kSecond;
  CHECK(contains(to_text(only({before, dump_of(0, 1)})), "left out an earlier dump of rank 0"));
}
