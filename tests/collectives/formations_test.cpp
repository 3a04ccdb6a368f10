/// How groups come about at a store: all or none, in every order, and nothing is left of them.

#include "collectives/rendezvous/store/formations.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "collectives/rendezvous/store/store_core.hpp"
#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kLong = 1u << 30;  ///< ms

/// The store's core with ranks whose connections have the numbers of their ranks.
struct Ranks {
  StoreCore core{7};
  std::uint32_t ids = 0;

  explicit Ranks(int size) {
    for (int r = 0; r < size; ++r)
      core.on_request(client(r), r, {.op = StoreOp::kJoin, .id = 1, .value = "pid"}, 0ns);
  }
  static StoreClientId client(int rank) { return static_cast<StoreClientId>(rank) + 100; }
  StoreReplies ask(int rank, StoreOp op, const std::string& key, const std::string& value = {},
                   std::uint32_t wait_ms = kLong, Instant now = 0ns, std::int64_t amount = 0) {
    return core.on_request(
        client(rank), rank,
        {.op = op, .id = ++ids, .key = key, .value = value, .amount = amount, .wait_ms = wait_ms}, now);
  }
  StoreReplies enter(int rank, const std::string& key, const std::vector<int>& ranks, bool survivors = false,
                     std::uint32_t wait_ms = kLong, Instant now = 0ns) {
    const Entry entry{.survivors = survivors, .ranks = ranks, .value = "of " + std::to_string(rank)};
    return ask(rank, StoreOp::kEnter, key, encode(entry), wait_ms, now);
  }
};

std::vector<int> up_to(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Gathered gathered_of(const StoreResponse& response) {
  Gathered gathered;
  REQUIRE(response.status == StoreStatus::kOk);
  decode_gathered(response.value, gathered).value();
  return gathered;
}

}  // namespace

TEST_CASE("a formation gathers what its ranks entered with, and all of them have it when all are ready") {
  Ranks ranks(3);
  CHECK(ranks.enter(2, "a/", {0, 1, 2}).empty());
  CHECK(ranks.enter(0, "a/", {0, 1, 2}).empty());
  CHECK(ranks.ask(0, StoreOp::kReady, "a/").at(0).response.status == StoreStatus::kBad);  // too early
  const auto all = ranks.enter(1, "a/", {0, 1, 2});
  REQUIRE(all.size() == 3);
  for (const auto& [to, response] : all) {
    const auto gathered = gathered_of(response);
    CHECK(gathered.total == 3);
    CHECK(gathered.values == std::vector<std::pair<int, std::string>>{{0, "of 0"}, {1, "of 1"}, {2, "of 2"}});
    CHECK(response.amount == (std::int64_t{7} << 32 | 1));
  }
  ranks.ask(1, StoreOp::kSet, "a/form/x", "y");
  CHECK(ranks.ask(2, StoreOp::kFind, "a/form/never").empty());
  CHECK(ranks.ask(0, StoreOp::kReady, "a/").empty());
  CHECK(ranks.ask(2, StoreOp::kReady, "a/").empty());
  const auto formed = ranks.ask(1, StoreOp::kReady, "a/");
  REQUIRE(formed.size() == 3);
  for (const auto& [to, response] : formed) CHECK(response.status == StoreStatus::kOk);
  CHECK(ranks.core.formations().size() == 0);
  CHECK(ranks.core.bytes() == 0);
  CHECK(ranks.ask(1, StoreOp::kSet, "a/form/never", "z").size() == 1);  // nobody waits any more
  // Others have other numbers.
  CHECK(ranks.enter(1, "b/", {1}).at(0).response.amount == (std::int64_t{7} << 32 | 2));
}

TEST_CASE("a rank that gives up, goes or is late ends a formation for all, those that come later too") {
  const auto failure = [](const StoreResponse& response) {
    CHECK(response.status == StoreStatus::kFailed);
    return static_cast<FormationFailure>(response.amount);
  };
  {  // It gives up while the others make their parts or wait.
    Ranks ranks(3);
    for (int r = 0; r < 3; ++r) ranks.enter(r, "a/", {0, 1, 2});
    CHECK(ranks.ask(0, StoreOp::kReady, "a/").empty());
    const auto told = ranks.ask(1, StoreOp::kFail, "a/", "no such device");
    REQUIRE(told.size() == 3);
    for (const auto& [to, response] : told) {
      CHECK(failure(response) == FormationFailure::kGaveUp);
      CHECK(response.value == "no such device");
    }
    CHECK(ranks.core.formations().size() == 1);  // rank 2 is still at it
    ranks.ask(2, StoreOp::kSet, "a/form/x", "y");
    CHECK(ranks.ask(2, StoreOp::kFail, "a/", "I, too").at(0).response.value == "no such device");
    CHECK(ranks.core.formations().size() == 0);
    CHECK(ranks.core.keys() == 0);
  }
  {  // It dies, before one has come.
    Ranks ranks(3);
    ranks.enter(0, "a/", {0, 1, 2});
    const auto told = ranks.core.on_gone(Ranks::client(1));
    REQUIRE(told.size() == 3);  // two hear that it is gone, and who waits that there will be no group
    CHECK(told[0].response.status == StoreStatus::kLost);
    CHECK(failure(told[2].response) == FormationFailure::kGone);
    CHECK(told[2].response.value == "rank 1 (pid) died");
    const auto late = ranks.enter(2, "a/", {0, 1, 2});
    CHECK(failure(late.at(0).response) == FormationFailure::kGone);
    CHECK(ranks.core.formations().size() == 0);
    // The next one has it in its list: it fails at once.
    CHECK(failure(ranks.enter(2, "b/", {1, 2}).at(0).response) == FormationFailure::kGone);
    CHECK(ranks.core.formations().size() == 0);
  }
  {  // It is late.
    Ranks ranks(5);
    ranks.enter(0, "a/", up_to(5), false, 2000, 0ns);
    ranks.enter(2, "a/", up_to(5), false, 2000, 1ns);
    CHECK(ranks.core.next_deadline() == Instant(2s));
    const auto told = ranks.core.on_time(2s, "; and so on");
    REQUIRE(told.size() == 2);
    for (const auto& [to, response] : told) {
      CHECK(failure(response) == FormationFailure::kTimeout);
      CHECK(response.value == "ranks 1, 3, 4 of 5 are missing after 2 s; and so on");
    }
    CHECK_FALSE(ranks.core.next_deadline());
    for (const int r : {1, 3, 4}) CHECK(ranks.enter(r, "a/", up_to(5)).size() == 1);
    CHECK(ranks.core.formations().size() == 0);
  }
  {  // The store gave it up before anybody came.
    Ranks ranks(2);
    CHECK(ranks.core.give_up("a/", "another size").empty());
    for (int r = 0; r < 2; ++r) CHECK(ranks.enter(r, "a/", {0, 1}).at(0).response.value == "another size");
    CHECK(ranks.core.formations().size() == 0);
  }
}

TEST_CASE("ranks that call with different lists are told both, and nobody gets a group") {
  const auto differ = [](const StoreReply& told, int rank, const std::string& why) {
    CHECK(told.to == Ranks::client(rank));
    CHECK(told.response.status == StoreStatus::kFailed);
    CHECK(told.response.amount == static_cast<std::int64_t>(FormationFailure::kDiffers));
    CHECK(told.response.value == why);
  };
  {
    Ranks ranks(3);
    ranks.enter(0, "a/", {0, 1});
    const auto told = ranks.enter(1, "a/", {0, 1, 2});
    const std::string why = "rank 1 called it with ranks 0-2, and rank 0 before with ranks 0, 1";
    REQUIRE(told.size() == 2);
    differ(told[0], 1, why);
    differ(told[1], 0, why);
    const auto late = ranks.enter(2, "a/", {0, 1, 2});  // on the other list alone
    REQUIRE(late.size() == 1);
    differ(late[0], 2, "rank 2 called it with ranks 0-2, and rank 0 before with ranks 0, 1");
    CHECK(ranks.core.formations().size() == 0);
  }
  {  // Two lists that have no rank in common: who comes last is not left waiting for one that was refused.
    Ranks ranks(4);
    ranks.enter(2, "a/", {2, 3});
    CHECK(ranks.enter(1, "a/", {0, 1}).size() == 2);
    CHECK(ranks.enter(3, "a/", {2, 3}).at(0).response.status == StoreStatus::kFailed);
    CHECK(ranks.core.formations().size() == 1);
    const auto late = ranks.enter(0, "a/", {0, 1});
    REQUIRE(late.size() == 1);
    differ(late[0], 0, "rank 0 called it with ranks 0, 1, and rank 2 before with ranks 2, 3");
    CHECK(ranks.core.formations().size() == 0);
  }
}

TEST_CASE("survivors are those that come when each of the others is gone") {
  Ranks ranks(4);
  CHECK(ranks.enter(3, "a/", {0, 1, 2, 3}, true).empty());
  CHECK(ranks.core.on_gone(Ranks::client(0)).size() == 3);
  CHECK(ranks.enter(1, "a/", {0, 1, 2, 3}, true).empty());
  const auto replies = ranks.core.on_gone(Ranks::client(2));
  REQUIRE(replies.size() == 4);  // two hear of it, and have their group
  CHECK(gathered_of(replies[3].response).values ==
        std::vector<std::pair<int, std::string>>{{1, "of 1"}, {3, "of 3"}});
  // Whoever dies now ends it, and is not in the next one.
  CHECK(ranks.core.on_gone(Ranks::client(3)).size() == 2);
  CHECK(ranks.ask(1, StoreOp::kFail, "a/", "yes").at(0).response.value == "rank 3 (pid) died");
  CHECK(ranks.core.formations().size() == 0);
  CHECK(gathered_of(ranks.enter(1, "b/", {0, 1, 2, 3}, true).at(0).response).total == 1);
  Ranks waits(3);
  waits.enter(0, "a/", {0, 1, 2}, true, 10);
  CHECK(waits.core.on_time(1s).at(0).response.value == "ranks 1, 2 live and did not call rebuild()");
}

TEST_CASE("entries and lists of values come back as they were") {
  const Entry entry{.survivors = true, .ranks = {0, 9, 16'383}, .value = std::string("v\0w", 3)};
  CHECK(decode_entry(encode(entry)).value() == entry);
  CHECK_FALSE(decode_entry("").ok());
  // More than fits into one response comes in several.
  std::vector<std::string> values;
  std::vector<std::pair<int, const std::string*>> all;
  for (int r = 0; r < 100; ++r) values.push_back(std::string(4096, static_cast<char>('a' + r % 26)));
  for (int r = 0; r < 100; ++r) all.emplace_back(r * 3, &values[static_cast<std::size_t>(r)]);
  Gathered gathered;
  int chunks = 0;
  do {
    decode_gathered(encode_gathered(all, gathered.values.size()), gathered).value();
    ++chunks;
  } while (gathered.values.size() < gathered.total);
  CHECK(chunks == 7);
  CHECK(gathered.values.back().first == 297);
  CHECK(gathered.values[26].second == values[0]);
  CHECK_FALSE(decode_gathered(encode_gathered(all, 0), gathered).ok());  // too many, and out of order
}

/// A rebuild left its list of survivors, and an attempt that failed all its keys: after a thousand of 512
/// ranks the store was full of what nobody would read.
TEST_CASE("a thousand rebuilds of 512 ranks, with deaths, failures and orders of every kind, leave nothing") {
  constexpr int kRanks = 512;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kRounds = 30;  // each takes a third of a second there
#else
  constexpr int kRounds = 1000;
#endif
  Ranks ranks(kRanks);
  SeededRandom random(2026);
  std::vector<int> members = up_to(kRanks);
  std::size_t most = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string key = "group/7." + std::to_string(round) + "/next/0/0/";
    std::vector<int> order = members;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    // Every tenth round a rank dies: before it comes, while the others make their parts, or when it is ready.
    const int dies = round % 10 == 3 && members.size() > 2 ? order.back() : -1;
    const int when = static_cast<int>(random.below(3));
    const bool fails = round % 10 == 7;
    std::size_t told = 0;
    for (const int r : order) {
      if (r == dies && when == 0) {
        told += ranks.core.on_gone(Ranks::client(r)).size();
      } else {
        told += ranks.enter(r, key, members, true).size();
      }
    }
    REQUIRE(told >= members.size() - 1);
    if (dies >= 0 && when == 0) std::erase(members, dies);
    for (const int r : members) ranks.ask(r, StoreOp::kSet, key + "form/of " + std::to_string(r), "x");
    most = std::max(most, ranks.core.bytes());
    bool over = false;
    for (const int r : order) {
      if (!std::binary_search(members.begin(), members.end(), r)) continue;
      if (r == dies && when == 2) ranks.ask(r, StoreOp::kReady, key);
      if (r == dies) {
        ranks.core.on_gone(Ranks::client(r));
        std::erase(members, r);
        over = true;
      } else if (fails && r == order[order.size() / 2]) {
        ranks.ask(r, StoreOp::kFail, key, "could not");
        over = true;
      } else if (over) {
        ranks.ask(r, StoreOp::kFail, key, "heard of it");
      } else if (ranks.ask(r, StoreOp::kReady, key).size() == members.size()) {
        over = true;
      }
    }
    REQUIRE(ranks.core.formations().size() == 0);
    REQUIRE(ranks.core.keys() == 0);
    REQUIRE(ranks.core.bytes() == 0);
    REQUIRE_FALSE(ranks.core.next_deadline());
  }
  CHECK(members.size() <= kRanks - kRounds / 10);
  CHECK(most > 10'000);
}
