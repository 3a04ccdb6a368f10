// Which batches a trainer asks for, and the memory they come in.
#include "actors/train/batches/prefetcher.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "actors/train/batches/batch_feed.hpp"
#include "actors/train/batches/slot_pool.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

std::vector<LoaderInfo> loaders(std::initializer_list<std::uint64_t> ids) {
  std::vector<LoaderInfo> list;
  for (const std::uint64_t id : ids) list.push_back({ActorId{id}, {}, ""});
  return list;
}

}  // namespace

TEST_CASE("batches are asked for in the order of their use, whatever the number of loaders") {
  for (const auto& list : {loaders({1}), loaders({1, 2}), loaders({1, 2, 3})}) {
    Prefetcher prefetcher(4, 3);
    prefetcher.set_loaders(list);
    prefetcher.restart({1, 3}, 5, 100);
    const auto requests = prefetcher.requests(Instant{0});
    REQUIRE(requests.size() == 3);
    CHECK((requests[0].step == 5 && requests[0].leaf == 1));
    CHECK((requests[1].step == 5 && requests[1].leaf == 2));
    CHECK((requests[2].step == 6 && requests[2].leaf == 1));
    for (const auto& r : requests) CHECK(r.loader == list[(r.step * 4 + r.leaf) % list.size()].actor);
    CHECK(prefetcher.requests(Instant{0}).empty());
  }
}

// They were chosen by number alone: batches crossed the network though a loader was on the trainer's own
// node.
TEST_CASE("loaders of the trainer's own node are asked first, and the others when these cannot") {
  const NodeId here{1}, there{2};
  const auto on = [](std::uint64_t id, NodeId node) { return LoaderInfo{ActorId{id}, node, ""}; };
  Prefetcher prefetcher(2, 4, std::chrono::seconds(1), here);
  prefetcher.set_loaders({on(1, there), on(2, here), on(3, there), on(4, here)});
  prefetcher.restart({0, 2}, 0, 10);
  std::vector<std::uint64_t> asked;
  for (const auto& request : prefetcher.requests(Instant{0})) asked.push_back(request.loader.value);
  CHECK(asked == std::vector<std::uint64_t>{2, 4, 2, 4});
  prefetcher.failed(0, 1);
  CHECK(prefetcher.requests(Instant{0}).front().loader == ActorId{1});
  prefetcher.failed(0, 1);
  CHECK(prefetcher.requests(Instant{0}).front().loader == ActorId{3});
  prefetcher.set_loaders({on(1, there), on(3, there)});
  asked.clear();
  for (const auto& request : prefetcher.requests(Instant{0})) asked.push_back(request.loader.value);
  CHECK(asked == std::vector<std::uint64_t>{1, 1, 3});  // two were asked of loader 3 before
}

TEST_CASE("what a lost or silent loader owes is asked of another; the first answer counts") {
  Prefetcher prefetcher(2, 2, std::chrono::seconds(1));
  prefetcher.set_loaders(loaders({1, 2}));
  prefetcher.restart({0, 2}, 0, 10);
  REQUIRE(prefetcher.requests(Instant{0}).size() == 2);
  prefetcher.set_loaders(loaders({2}));
  const auto again = prefetcher.requests(Instant{0});
  REQUIRE(again.size() == 1);
  CHECK(again[0] == BatchRequest{0, 0, ActorId{2}});
  CHECK(prefetcher.arrived(0, 0));
  CHECK_FALSE(prefetcher.ready(0));
  CHECK(prefetcher.requests(std::chrono::seconds(2)) == std::vector{BatchRequest{0, 1, ActorId{2}}});
  CHECK(prefetcher.arrived(0, 1));
  CHECK_FALSE(prefetcher.arrived(0, 1));
  CHECK(prefetcher.ready(0));
  prefetcher.release(0);
  CHECK(prefetcher.requests(std::chrono::seconds(2)).front().step == 1);
  CHECK_FALSE(prefetcher.arrived(0, 0));
}

TEST_CASE("a new generation keeps the batches that still fit and gives the others back") {
  Prefetcher prefetcher(4, 4);
  prefetcher.set_loaders(loaders({1}));
  prefetcher.restart({0, 2}, 3, 10);
  prefetcher.requests(Instant{0});
  prefetcher.arrived(3, 0, 70);
  prefetcher.arrived(3, 1, 71);
  const auto freed = prefetcher.restart({1, 4}, 3, 10);
  CHECK(freed == std::vector<SlotId>{70});
  CHECK(prefetcher.slot_of(3, 1) == SlotId{71});
}

// A window of L batches for 64 logical ranks of 19 MB each took 7 GB.
TEST_CASE("a window smaller than a step lets go of each batch that was used, and gets it again") {
  Prefetcher prefetcher(8, 2);
  prefetcher.set_loaders(loaders({1}));
  prefetcher.restart({0, 4}, 0, 10);
  const auto asked = [&] {
    std::vector<int> leaves;
    for (const auto& r : prefetcher.requests(Instant{0}))
      leaves.push_back(static_cast<int>(r.step) * 4 + r.leaf);
    return leaves;
  };
  CHECK(asked() == std::vector<int>{0, 1});
  CHECK(prefetcher.arrived(0, 0, 5));
  CHECK(prefetcher.arrived(0, 1, 6));
  CHECK(prefetcher.used(0, 0) == SlotId{5});
  CHECK(asked() == std::vector<int>{2});
  CHECK(prefetcher.used(0, 1) == SlotId{6});
  CHECK(asked() == std::vector<int>{3});
  prefetcher.arrived(0, 2, 5);
  prefetcher.arrived(0, 3, 6);
  CHECK(prefetcher.held() == 2);
  // The step fails before its last leaf: it begins again with the first.
  CHECK(prefetcher.used(0, 2) == SlotId{5});
  CHECK(prefetcher.restart({0, 4}, 0, 10) == std::vector<SlotId>{6});
  CHECK(asked() == std::vector<int>{0, 1});
}

TEST_CASE("a window of two steps keeps what was used until the step is through") {
  Prefetcher prefetcher(2, 4);
  prefetcher.set_loaders(loaders({1}));
  prefetcher.restart({0, 2}, 0, 10);
  prefetcher.requests(Instant{0});
  prefetcher.arrived(0, 0, 1);
  prefetcher.arrived(0, 1, 2);
  CHECK_FALSE(prefetcher.used(0, 0).has_value());
  CHECK(prefetcher.restart({0, 2}, 0, 10).empty());
  CHECK(prefetcher.ready(0));
  CHECK(prefetcher.release(0) == std::vector<SlotId>{1, 2});
}

// A link that was down was asked as fast as it refused: the simulator ran out of events.
TEST_CASE("once every loader has refused a batch, the next round waits") {
  Prefetcher prefetcher(1, 1);
  prefetcher.set_loaders(loaders({1, 2}));
  prefetcher.restart({0, 1}, 0, 10);
  const Instant now{std::chrono::seconds(5)};
  CHECK(prefetcher.requests(now).size() == 1);
  prefetcher.failed(0, 0);
  CHECK(prefetcher.requests(now).size() == 1);
  prefetcher.failed(0, 0);
  CHECK(prefetcher.requests(now + std::chrono::milliseconds(49)).empty());
  CHECK(prefetcher.requests(now + std::chrono::milliseconds(50)).size() == 1);
  prefetcher.ask_again(0, 0);  // it did not fit: nobody refused
  CHECK(prefetcher.requests(now + std::chrono::milliseconds(50)).size() == 1);
}

// The third error of a generation was fatal, however far apart.
TEST_CASE("errors of the data are counted for each batch; a loader's death is none") {
  Prefetcher prefetcher(1, 2);
  prefetcher.set_loaders(loaders({1}));
  prefetcher.restart({0, 1}, 0, 10);
  prefetcher.requests(Instant{0});
  CHECK(prefetcher.failed(0, 0, true) == 1);
  CHECK(prefetcher.failed(1, 0, true) == 1);
  CHECK(prefetcher.failed(0, 0) == 1);
  prefetcher.requests(Instant{0});
  CHECK(prefetcher.failed(0, 0, true) == 2);
  prefetcher.restart({0, 1}, 0, 10);
  CHECK(prefetcher.failed(0, 0, true) == 3);
}

namespace {

/// Memory without a node.
struct FakeNode {
  std::set<std::string> regions;
  std::vector<const std::byte*> pinned;  ///< that memory begins here
  RegionSource source() {
    return {.open =
                [this](const std::string& name, std::size_t bytes) {
                  CHECK(regions.insert(name).second);
                  return SharedMemory::create(name, bytes, false).value();
                },
            .drop = [this](const std::string& name) { CHECK(regions.erase(name) == 1); },
            .pin =
                [this](std::span<std::byte> memory) {
                  pinned.push_back(memory.data());
                  return std::shared_ptr<const void>(memory.data(), [this](const void* data) {
                    (void)*static_cast<const volatile std::byte*>(data);  // still there
                    CHECK(std::erase(pinned, data) == 1);
                  });
                }};
  }
};

}  // namespace

TEST_CASE("slots are for the leaves that a trainer hosts, as far as the budget goes") {
  CHECK(plan_slots(1, 80'000, 1 << 28).slots == 6);
  CHECK(plan_slots(4, 80'000, 1 << 28).slots == 24);
  const std::size_t image_batch = std::size_t{32} * 3 * 224 * 224 * 4;
  const auto large = plan_slots(64, image_batch, 1 << 28);
  CHECK(static_cast<std::size_t>(large.slots) * large.bytes <= std::size_t{1} << 28);
  CHECK(large.capacity() >= 2);
  CHECK(plan_slots(1, std::size_t{1} << 30, 1 << 28).slots == 4);
}

TEST_CASE("larger slots come from a new region; the old one goes with the last batch in it") {
  FakeNode node;
  {
    SlotPool pool(node.source(), "feed");
    CHECK_FALSE(pool.take().has_value());
    pool.add(pool.make({64, 2}, pool.next_number()));
    const auto first = pool.take();
    const auto second = pool.take();
    REQUIRE((first && second));
    CHECK_FALSE(pool.take().has_value());
    CHECK(pool.memory(*second).data() == pool.memory(*first).data() + 64);
    const auto* before = pool.memory(*first).data();
    CHECK(node.pinned == std::vector<const std::byte*>{before});
    pool.add(pool.make({256, 4}, pool.next_number()));
    CHECK(pool.memory(*first).data() == before);
    CHECK(pool.place(*first).region == "feed/1");
    const auto large = pool.take();
    REQUIRE(large);
    CHECK(pool.memory(*large).size() == 256);
    CHECK(pool.place(*large).region == "feed/2");
    pool.give_back(*first);
    CHECK(pool.regions() == std::vector<std::string>{"feed/1", "feed/2"});
    pool.give_back(*second);
    CHECK(pool.regions() == std::vector<std::string>{"feed/2"});
    CHECK(node.regions == std::set<std::string>{"feed/2"});
    CHECK(node.pinned == std::vector<const std::byte*>{pool.memory(*large).data()});
    pool.give_back(*large);
    pool.add(pool.make({128, 4}, pool.next_number()));
    CHECK(pool.regions() == std::vector<std::string>{"feed/3"});
    for (int i = 0; i < 4; ++i) CHECK(pool.take().has_value());
    CHECK_FALSE(pool.take().has_value());
  }
  CHECK(node.regions.empty());
  CHECK(node.pinned.empty());
}

// Was: "Digits::dataset threw: Digits::dataset threw: cannot read the dataset".
TEST_CASE("what a dataset threw is told once, whichever call of the loader threw it") {
  const auto told = [](const std::string& what) {
    return of_the_dataset("Digits", {ErrorCode::kIo, what, "why", ""}).what;
  };
  CHECK(told("Loader::begin threw: Digits::dataset threw: cannot read") ==
        "Digits::dataset threw: cannot read");
  CHECK(told("Loader::begin threw: Digits::dataset threw std::bad_alloc") ==
        "Digits::dataset threw std::bad_alloc");
  CHECK(told("Loader::get threw: sample 3 threw: no") == "Digits::dataset threw: sample 3 threw: no");
}
