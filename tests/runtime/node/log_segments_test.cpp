// Output of submitted jobs on disk: bounded, trimmed from the front, and lost rather than waited for.
#include "runtime/node/log_segments.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "runtime/node/job_programs.hpp"
#include "runtime/node/output_thread.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::node;
using troupe::test::TempFolder;

namespace {

void append(LogSegments& log, const std::string& text, wire::LogStream stream = wire::LogStream::kOutput) {
  log.append(stream, std::as_bytes(std::span(text)));
}

/// All that is there, from `offset` on, piece by piece; `gone`: how much of it is not.
std::string read_all(const std::string& folder, std::uint64_t offset, std::uint64_t& gone) {
  std::string text;
  wire::Bytes rest;
  gone = 0;
  for (;;) {
    const auto part = read_log(folder, {.offset = offset, .most_bytes = 7000}).value();
    gone += part.offset - offset;
    rest.insert(rest.end(), part.bytes.begin(), part.bytes.end());
    const auto taken = wire::read_log_frames(rest, [&](const wire::LogFrame& frame) {
      if (frame.stream == wire::LogStream::kNote) text += "NOTE ";
      text.append(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
    });
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(taken.value()));
    offset = part.offset + part.bytes.size();
    if (part.bytes.empty()) return text;
  }
}

}  // namespace

TEST_CASE("a log is read at any offset, over segments, with binary bytes as they are") {
  const TempFolder folder;
  LogSegments log(folder.path(), {.segment_bytes = 10'000, .total_bytes = 1'000'000});
  std::string all;
  for (int i = 0; i < 100; ++i) {
    std::string line(997, static_cast<char>(i));
    line += std::string("\0\xff\n", 3);
    append(log, line);
    all += line;
  }
  std::uint64_t gone = 0;
  CHECK(read_all(folder.path(), 0, gone) == all);
  CHECK(gone == 0);
  const auto end = read_log(folder.path(), {.offset = ~std::uint64_t{0}, .most_bytes = 10}).value();
  CHECK(end.offset == end.end);
  const auto last =
      read_log(folder.path(), {.offset = end.end, .most_bytes = 100'000, .from_segment = true}).value();
  CHECK(last.offset < end.end);
  CHECK(wire::read_log_frames(last.bytes, [](const wire::LogFrame&) {}).value() == last.bytes.size());
  CHECK_FALSE(read_log(folder / "nothing", {}));
}

TEST_CASE("a log keeps the newest, and says where it begins") {
  const TempFolder folder;
  LogSegments log(folder.path(), {.segment_bytes = 10'000, .total_bytes = 50'000});
  for (int i = 0; i < 500; ++i) append(log, std::string(1000, static_cast<char>('a' + i % 26)));
  const auto part = read_log(folder.path(), {.offset = 0, .most_bytes = 100}).value();
  CHECK(part.first == part.offset);
  CHECK(part.end == 500 * 1020);
  CHECK(part.end - part.first <= 50'000);
  CHECK(part.end - part.first > 30'000);
  std::uint64_t gone = 0;
  CHECK(read_all(folder.path(), 0, gone).size() == (part.end - part.first) / 1020 * 1000);
  CHECK(gone == part.first);
}

TEST_CASE("a log of bytes keeps the newest under its own name, and older ones by where they begin") {
  const TempFolder folder;
  const std::string path = folder / "stdout.log";
  SegmentFiles log(path, {.segment_bytes = 1000, .total_bytes = 4000}, SegmentFiles::Names::kNewest);
  const auto write = [&](char c) {
    const std::string text(400, c);
    return log.write(std::as_bytes(std::span(text)));
  };
  for (int i = 0; i < 7; ++i) CHECK(write(static_cast<char>('a' + i)));
  CHECK(log.trimmed() == 0);
  CHECK(test::read_file(path + ".000000000000") ==
        std::string(400, 'a') + std::string(400, 'b') + std::string(400, 'c'));
  CHECK(test::read_file(path) == std::string(400, 'g'));
  for (int i = 7; i < 26; ++i) CHECK(write(static_cast<char>('a' + i)));
  CHECK(log.trimmed() == 7200);
  std::string all;
  for (const char* start : {".000000007200", ".000000008400", ""}) all += test::read_file(path + start);
  CHECK(all.size() == 26 * 400 - 7200);
  CHECK(all.front() == 's');
  CHECK(all.back() == 'z');
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 3);
}

TEST_CASE("a disk that takes nothing loses output, never the program's time, and the log says how much") {
  const TempFolder folder;
  LogSegments log(folder.path(), {});
  append(log, "before\n");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto former = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{60, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
  append(log, std::string(1000, 'x'));
  append(log, std::string(500, 'y'));
  CHECK(log.unreported() == 1500);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, former);
  append(log, "after\n");
  CHECK(log.unreported() == 0);
  std::uint64_t gone = 0;
  CHECK(read_all(folder.path(), 0, gone) ==
        "before\nNOTE 1500 bytes of output were lost: File too large: the limit on the length of a file "
        "(ulimit -f) "
        "is 60 bytes\nafter\n");
}

// Output took the last byte of a small disk: the head's store could record nothing any more.
TEST_CASE(
    "output stops while the disk is nearly full, what is lost is counted, and the log says so at once") {
  const TempFolder folder;
  DiskRoom room{std::uint64_t{24} << 20, std::uint64_t{24} << 20};
  LogSegments log(folder.path(), {}, [&](const std::string&) { return room; });
  append(log, "before\n");
  room.free = room.total / 20 - 1;
  append(log, std::string(1000, 'x'));
  append(log, std::string(500, 'y'));
  CHECK(log.unreported() == 1500);
  append(log, "a note\n", wire::LogStream::kNote);
  const std::string why = "the node's disk is nearly full, and what is left is for the cluster's records\n";
  const std::string begins = "before\nNOTE output is lost from here on: " + why +
                             "NOTE 1500 bytes of output were lost: " + why + "NOTE a note\n";
  std::uint64_t gone = 0;
  CHECK(read_all(folder.path(), 0, gone) == begins);
  append(log, "z");
  CHECK(log.finish().empty());  // it is on disk: a twentieth was left for such things
  CHECK(read_all(folder.path(), 0, gone) ==
        begins + "NOTE output is lost from here on: " + why + "NOTE 1 byte of output was lost: " + why);
  constexpr std::uint64_t kMiB = 1 << 20;
  CHECK_FALSE(is_nearly_full({1'000'000 * kMiB, 64 * kMiB}));
  CHECK(is_nearly_full({1'000'000 * kMiB, 64 * kMiB - 1}));
  CHECK_FALSE(is_nearly_full({}));  // a file system that does not say
}

// A job whose last output was lost said nothing: what was counted was for the next thing that was written.
TEST_CASE(
    "what a full disk lost is told by who reads a closed log, at any offset, where not even that fits") {
  const TempFolder folder;
  LogSegments log(folder.path(), {}, [](const std::string&) { return std::nullopt; });
  append(log, "before\n");
  const std::uint64_t written = read_log(folder.path(), {.most_bytes = 100}).value().end;
  std::string text;
  {
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto former = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit full{30, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    append(log, std::string(700, 'x'));
    const wire::Bytes note = log.finish();
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, former);
    REQUIRE_FALSE(note.empty());
    const auto part = [&](wire::LogAsk ask) {
      auto read = read_log(folder.path(), ask).value();
      add_to_end(read, ask, note);
      CHECK(read.end == written + note.size());
      CHECK(read.bytes.size() <= ask.most_bytes);
      return read;
    };
    for (const std::uint32_t most : {1u, 7u, 1000u}) {
      wire::Bytes all;
      for (;;) {
        const auto read = part({.offset = all.size(), .most_bytes = most});
        CHECK(read.offset == all.size());
        if (read.bytes.empty()) break;
        all.insert(all.end(), read.bytes.begin(), read.bytes.end());
      }
      text.clear();
      const auto taken = wire::read_log_frames(all, [&](const wire::LogFrame& frame) {
        text.append(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
      });
      CHECK(taken.value() == all.size());
      CHECK(text ==
            "before\n700 bytes of output were lost: File too large: the limit on the length of a file "
            "(ulimit -f) is 30 bytes\n");
    }
    CHECK(part({.offset = ~std::uint64_t{0}, .most_bytes = 1000, .from_segment = true}).offset == 0);
    CHECK(part({.offset = ~std::uint64_t{0}, .most_bytes = 1000}).bytes.empty());
  }
}

TEST_CASE("the thread that reads a job's pipes keeps what its closed log could not say") {
  const TempFolder folder;
  OutputThread output;
  int out[2], errors[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(errors, O_CLOEXEC) == 0);
  REQUIRE(::write(out[1], "lost\n", 5) == 5);
  output.add("job/1", UniqueFd(out[0]), UniqueFd(errors[0]), LogSegments(folder / "nowhere", {}));
  ::close(out[1]);
  ::close(errors[1]);
  output.finish("job/1", [] {});
  REQUIRE(test::eventually([&] { return !output.is_open("job/1"); }));
  std::string text;
  wire::read_log_frames(output.note_at_end("job/1"), [&](const wire::LogFrame& frame) {
    text.assign(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size());
  }).value();
  CHECK(text == "5 bytes of output were lost: No such file or directory\n");
  output.forget("job/");
  CHECK(output.note_at_end("job/1").empty());
}

TEST_CASE("bytes that are no frame are refused, and the beginning of one waits") {
  std::vector<std::byte> bytes;
  wire::append_log_frame(bytes, {wire::LogStream::kErrors, 5, {}});
  const auto take = [](const wire::LogFrame&) {};
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK(wire::read_log_frames(std::span(bytes).first(size), take).value() == 0);
  CHECK(wire::read_log_frames(bytes, take).value() == wire::kLogHeaderBytes);
  for (const std::size_t at : {0, 4, 11}) {  // magic, stream, length
    auto wrong = bytes;
    wrong[at] = std::byte{0xff};
    CHECK_FALSE(wire::read_log_frames(wrong, take));
  }
}

TEST_CASE("what a process logs is read from its file, and from nothing else") {
  const TempFolder folder;
  const std::string path = folder.path() + "/node.log";
  const UniqueFd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  REQUIRE(::write(log.get(), "one\ntwo\n", 8) == 8);
  const auto read = [&](std::uint64_t offset, std::uint32_t most) {
    const auto part = read_log_of_process(log.get(), {.offset = offset, .most_bytes = most}).value();
    CHECK(part.end == 8);
    return std::to_string(part.offset) + ":" +
           std::string(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
  };
  CHECK(read(0, 100) == "0:one\ntwo\n");
  CHECK(read(4, 2) == "4:tw");
  CHECK(read(~std::uint64_t{0}, 100) == "8:");
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  const auto none = read_log_of_process(writing.get(), {.most_bytes = 100});
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::kUnavailable);
}

TEST_CASE("programs that cannot be started say why in three parts") {
  const auto why = [](const std::string& program) {
    const auto started = start_program({{program}, {"PATH=/usr/bin:/bin"}, "/tmp"});
    REQUIRE_FALSE(started);
    CHECK_FALSE(started.error().what.empty());
    CHECK_FALSE(started.error().todo.empty());
    return started.error().why;
  };
  const TempFolder folder;
  const std::string file = folder / "file";
  std::FILE* out = std::fopen(file.c_str(), "w");
  std::fputs(
      "\x7f"
      "ELF\2\1\1 of no machine",
      out);
  std::fclose(out);
  CHECK(why("/no/such/program").starts_with("/no/such/program is not on this node"));
  CHECK(why("no-such-program").starts_with("it is in no folder of the node's PATH"));
  CHECK(why(file).ends_with("is not executable"));
  REQUIRE(::chmod(file.c_str(), 0700) == 0);
  CHECK(why(file).find("is no program for this machine") != std::string::npos);
  const auto nowhere = start_program({{"/bin/true"}, {}, "/no/such/folder"});
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().why == "its folder /no/such/folder: No such file or directory");
}
