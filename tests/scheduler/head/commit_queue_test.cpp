#include "scheduler/head/commit_queue.hpp"

#include <catch2/catch.hpp>

#include "runtime/core/random.hpp"
#include "scheduler/store/records.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

Persist record(const std::string& name, std::uint32_t incarnation = 1) {
  return {"job/" + name, JobRecord{name, incarnation, {}, {}, 0, false}};
}
ClusterAction said(std::uint64_t to) {
  return NodeAccepted{{to}};
}

std::vector<std::uint64_t> ready(CommitQueue& queue) {
  std::vector<std::uint64_t> all;
  for (const HeadMessage& message : queue.take_ready())
    all.push_back(std::get<NodeAccepted>(std::get<ClusterAction>(message)).node.value);
  return all;
}

using Told = std::vector<std::uint64_t>;
const ErrorInfo kFull{ErrorCode::kIo, "cannot write to the store", "the disk is full", "free space"};

}  // namespace

TEST_CASE("what is not behind a write leaves at once") {
  CommitQueue queue;
  queue.add({said(1), record("a"), said(2)});
  CHECK(ready(queue) == Told{1});
  CHECK(queue.held() == 1);
}

TEST_CASE("everything that came while one write ran goes in the next one") {
  CommitQueue queue;
  queue.add({record("a"), said(1)});
  const auto first = queue.next_write({});
  REQUIRE(first != nullptr);
  CHECK(queue.next_write({}) == nullptr);
  queue.add({said(2)});
  queue.add({record("b"), said(3)});
  queue.add({record("c"), said(4)});
  queue.add({said(5)});
  CHECK(ready(queue).empty());
  queue.written({}, {});
  CHECK(ready(queue) == Told{1, 2});
  const auto second = queue.next_write({});
  REQUIRE(second->changes().size() == 2);
  CHECK(ready(queue).empty());
  queue.written({}, {});
  CHECK(ready(queue) == Told{3, 4, 5});
  CHECK(queue.next_write({}) == nullptr);
}

TEST_CASE("of a record that changes twice in a batch the last change is written") {
  CommitQueue queue;
  queue.add({record("a", 1), record("b"), record("a", 2), Erase{"job/b"}});
  const auto batch = queue.next_write({});
  REQUIRE(batch->changes().size() == 2);
  CHECK(decode_record(*batch->changes()[0].value).value() == Record(record("a", 2).record));
  CHECK_FALSE(batch->changes()[1].value);
}

TEST_CASE("a write that fails is tried again, later and later, and nothing behind it leaves") {
  CommitQueue queue;
  queue.add({record("a"), said(1)});
  const auto batch = queue.next_write({});
  queue.written(kFull, {});
  CHECK(queue.failure()->why == "the disk is full");
  queue.add({said(2)});
  CHECK(ready(queue).empty());
  CHECK(queue.next_write(milliseconds(99)) == nullptr);
  CHECK(queue.next_write(milliseconds(100)) == batch);
  queue.written(kFull, milliseconds(100));
  CHECK(queue.next_write(milliseconds(299)) == nullptr);
  CHECK(queue.next_write(milliseconds(300)) == batch);
  Instant now = milliseconds(300);
  for (int i = 0; i < 10; ++i) {
    queue.written(kFull, now);
    now += seconds(5);
    REQUIRE(queue.next_write(now) == batch);
  }
  queue.written({}, now);
  CHECK_FALSE(queue.failure());
  CHECK(ready(queue) == Told{1, 2});
}

TEST_CASE("what has changed since a write failed goes with it, and what waits for either leaves then") {
  CommitQueue queue;
  queue.add({record("a"), record("b"), said(1)});
  queue.next_write({});
  queue.add({Erase{"job/b"}, record("c"), said(2)});
  queue.written(kFull, {});
  const auto again = queue.next_write(milliseconds(100));
  REQUIRE(again->changes().size() == 3);
  CHECK(again->changes()[0].value);
  CHECK(again->changes()[1].key == "job/b");
  CHECK_FALSE(again->changes()[1].value);
  queue.add({record("d"), said(3)});
  queue.written({}, milliseconds(100));
  CHECK(ready(queue) == Told{1, 2});
  queue.next_write(milliseconds(100));
  queue.written({}, milliseconds(100));
  CHECK(ready(queue) == Told{3});
}

TEST_CASE("whatever fails, messages leave in order, and after what came before them is in the store") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  CommitQueue queue;
  MemoryStorage store;
  std::uint64_t made = 0, left = 0;
  std::shared_ptr<const StoreBatch> under_way;
  Instant now{};
  for (int i = 0; i < 5000; ++i) {
    now += milliseconds(random.below(200));
    if (random.below(2) == 0) {
      ++made;  // message n says that record n is durable
      queue.add({record(std::to_string(made)), said(made)});
    }
    if (under_way && random.below(2) == 0) {
      if (random.below(3) == 0) store.fail_write(1, MemoryStorage::Fault::kRefuse);
      queue.written(store.apply(*std::exchange(under_way, nullptr)), now);
    }
    if (!under_way) under_way = queue.next_write(now);
    for (const std::uint64_t number : ready(queue)) {
      REQUIRE(number == ++left);
      REQUIRE(store.get("job/" + std::to_string(number)).value().has_value());
    }
  }
  CHECK(left > 1000);
}
