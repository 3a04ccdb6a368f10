// The memory of objects: written, sealed, read, and written again once nobody reads it.
#include "runtime/objects/segment.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "runtime/objects/segment_pool.hpp"

using namespace troupe;
using namespace troupe::objects;

namespace {

constexpr std::size_t kSegmentBytes = 100'000;

wire::Bytes filled(char with, std::size_t bytes = kSegmentBytes) {
  return wire::Bytes(bytes, static_cast<std::byte>(with));
}
/// A node's, whose descriptor everybody gets.
SharedMemory region(std::size_t bytes = kSegmentBytes) {
  return SharedMemory::create("test", bytes + kTagBytes, false, true).value();
}
UniqueFd fd_of(const SharedMemory& memory) {
  return UniqueFd(::dup(memory.fd()));
}
SegmentPtr segment_of(const SharedMemory& memory, std::uint64_t object, const wire::Bytes& bytes) {
  return Segment::write(1, fd_of(memory), object, bytes.size(), source_of(bytes)).value();
}
bool holds(const std::shared_ptr<const ObjectBytes>& object, const wire::Bytes& bytes) {
  const auto view = object->view();
  return view.size() == bytes.size() && std::memcmp(view.data(), bytes.data(), bytes.size()) == 0;
}
SegmentPtr any_segment(std::size_t bytes) {
  return segment_of(region(bytes), 1, filled('x', bytes));
}

}  // namespace

TEST_CASE("Memory that somebody reads is not written again") {
  // Story: a View stays valid whatever becomes of its object, also when the next object would fit there.
  const auto memory = region();
  const auto segment = segment_of(memory, 1, filled('a'));
  auto first = read_segment(fd_of(memory), 1, kSegmentBytes).value();
  auto same = read_segment(fd_of(memory), 1, kSegmentBytes).value();
  CHECK(holds(first, filled('a')));
  const auto b = filled('b', kSegmentBytes / 2);
  CHECK_FALSE(is_unread(fd_of(memory)));
  CHECK_FALSE(segment->write_again(fd_of(memory), 2, b.size(), source_of(b)).value());
  same.reset();
  CHECK_FALSE(segment->write_again(fd_of(memory), 2, b.size(), source_of(b)).value());
  CHECK(holds(first, filled('a')));
  first.reset();
  CHECK(is_unread(fd_of(memory)));
  CHECK(segment->write_again(fd_of(memory), 2, b.size(), source_of(b)).value());
  CHECK(holds(read_segment(fd_of(memory), 2, b.size()).value(), b));
  // Who comes late for the first one does not get the second.
  CHECK(read_segment(fd_of(memory), 1, kSegmentBytes).error().code == ErrorCode::kUnavailable);
}

TEST_CASE("A reader that is killed reads no more") {
  const auto memory = region();
  const auto segment = segment_of(memory, 1, filled('a'));
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t reader = ::fork();
  if (reader == 0) {
    const auto held = read_segment(fd_of(memory), 1, kSegmentBytes);
    char ok = held ? 'y' : 'n';
    if (::write(ready[1], &ok, 1) == 1) ::pause();
    ::_exit(0);
  }
  char ok = 0;
  REQUIRE(::read(ready[0], &ok, 1) == 1);
  CHECK(ok == 'y');
  const auto b = filled('b');
  CHECK_FALSE(segment->write_again(fd_of(memory), 2, kSegmentBytes, source_of(b)).value());
  ::kill(reader, SIGKILL);
  REQUIRE(::waitpid(reader, nullptr, 0) == reader);
  CHECK(segment->write_again(fd_of(memory), 2, kSegmentBytes, source_of(b)).value());
  ::close(ready[0]), ::close(ready[1]);
}

TEST_CASE("Memory without a seal is no object, and a write that fails leaves none") {
  const auto memory = region();
  CHECK(read_segment(fd_of(memory), 1, kSegmentBytes).error().code == ErrorCode::kUnavailable);
  const auto segment = segment_of(memory, 1, filled('a'));
  const Source fails = [](std::uint64_t) -> Result<wire::ByteView> {
    return ErrorInfo{ErrorCode::kCorrupt, "no", "more", "bytes"};
  };
  CHECK(segment->write_again(fd_of(memory), 2, kSegmentBytes, fails).error().code == ErrorCode::kCorrupt);
  CHECK_FALSE(read_segment(fd_of(memory), 1, kSegmentBytes));
  CHECK_FALSE(read_segment(fd_of(memory), 2, kSegmentBytes));
}

TEST_CASE("Memory of a copy goes to another one once it has all of the first, and nobody reads that") {
  // Was: a copy got its name before its maker held the lock. In between, the node could lend the memory on.
  const ProcessAddress owner{{1}, {2}};
  const ObjectName first{owner, 7};
  const ObjectName second{owner, 8};
  const auto memory = region();
  CHECK_FALSE(take_memory(fd_of(memory)));  // somebody may be about to write to it
  REQUIRE(write_at(fd_of(memory), 0, filled('a')).ok());
  CHECK_FALSE(is_copy_of(fd_of(memory), first));
  auto copy = finish_copy(fd_of(memory), first, kSegmentBytes).value();
  CHECK(is_copy_of(fd_of(memory), first));
  CHECK_FALSE(is_copy_of(fd_of(memory), second));
  CHECK_FALSE(take_memory(fd_of(memory)));
  CHECK(holds(copy, filled('a')));
  CHECK(holds(read_copy(fd_of(memory), first, kSegmentBytes).value(), filled('a')));
  copy.reset();
  CHECK(take_memory(fd_of(memory)));
  CHECK(read_copy(fd_of(memory), first, kSegmentBytes).error().code == ErrorCode::kUnavailable);
}

TEST_CASE("Kept memory goes to an object that fits, and is given back when it is too much or idle") {
  SegmentPool pool;
  std::vector<SegmentPtr> out;
  const auto keep = [&](std::size_t bytes, int second) {
    pool.keep(any_segment(bytes), 3'000'000, std::chrono::seconds(second), out);
  };
  keep(1'000'000, 1);
  keep(600'000, 2);
  CHECK(pool.take(250'000) == nullptr);  // more than twice as large
  CHECK(pool.take(2'000'000) == nullptr);
  const auto fit = pool.take(500'000);
  REQUIRE(fit != nullptr);
  CHECK(fit->capacity() < 700'000);
  CHECK(pool.size() == 1);
  keep(1'000'000, 3);
  CHECK(out.empty());
  keep(1'500'000, 4);
  CHECK(out.size() == 1);  // the oldest
  CHECK(pool.bytes() <= 3'000'000);
  CHECK(pool.since(std::chrono::seconds(3)).size() == 1);
  CHECK(pool.size() == 1);
  CHECK(pool.since(Instant::max()).size() == 1);
  CHECK(pool.bytes() == 0);
}
