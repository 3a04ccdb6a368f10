/// The four parts of the engine, each without a lock, thread or process: ranks of one test take steps by
/// turns.

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <numeric>

#include "collectives/check_op.hpp"
#include "collectives/native/waiting.hpp"
#include "runtime/core/error.hpp"
#include "tests/collectives/library_checks.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;
using troupe::test::contains;

namespace {

Region attach(const NativeGroupOptions& o) {
  const HostLayout layout(o.machines);
  return Region::attach(o.region,
                        {.world_size = o.size,
                         .local_ranks = layout.ranks_with(o.rank),
                         .data_bytes = o.data_bytes,
                         .hosts = layout.hosts(),
                         .most_members = layout.most_members()},
                        o.generation)
      .value();
}

/// What an engine is made of, with nobody who drives it.
struct Rank {
  explicit Rank(NativeGroupOptions o)
      : memory(o.region),
        view(o.rank, "", o.machines, attach(o)),
        data(view, rank_leaves(o.size)),
        rounds(view, data),
        gateways(view, data, rounds, any, std::move(o.remote), std::move(o.connector)),
        messages(view, gateways, any),
        waiting(view, rounds, gateways, messages, 200ms) {
    view.region.add_cores();
  }
  Op completed(Op op) {
    complete_op(op, {.rank = view.rank, .size = view.size});
    if (!is_message(op.kind)) op.sequence = ++calls;
    return op;
  }
  Token launch(Op op) {
    const Token token{.rounds = rounds.launch(completed(std::move(op)))};
    gateways.on_launch();
    if (!view.one_host()) gateways.exchange();
    return token;
  }
  std::shared_ptr<Transfer> post(Op op) { return messages.post(completed(std::move(op))); }
  bool step() {
    bool moved = rounds.advance();
    moved = messages.exchange() || moved;
    return (!view.one_host() && gateways.exchange()) || moved;
  }
  std::uint32_t arrived() const { return view.mine.arrived.rounds; }
  std::uint32_t reduced() const { return view.mine.reduced.rounds; }

  std::shared_ptr<SharedMemory> memory;
  RankView view;
  RoundData data;
  Rounds rounds;
  AnyReceives any;
  Gateways gateways;
  Messages messages;
  Waiting waiting;
  std::uint64_t calls = 0;
};

using Nodes = std::vector<std::vector<int>>;
std::vector<std::unique_ptr<Rank>> ranks_of(int size, const Nodes& nodes = {}) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (auto& options : options_of(size, {.nodes = nodes}))
    ranks.push_back(std::make_unique<Rank>(std::move(options)));
  return ranks;
}

/// Until nothing moves any more.
void settle(const std::vector<std::unique_ptr<Rank>>& ranks) {
  const auto steps = [&] {
    return std::accumulate(ranks.begin(), ranks.end(), false,
                           [](bool moved, auto& r) { return r->step() || moved; });
  };
  while (steps()) {
  }
}

constexpr std::size_t kChunk = kChunkBytes / sizeof(float);

Op sum_of(std::vector<float>& values) {
  return Op::all_reduce(buffer_of(std::span(values)), ReduceOp::kSum);
}

}  // namespace

TEST_CASE("rounds: reduced once all have arrived, complete once all have reduced") {
  const auto ranks = ranks_of(2);
  Rank &a = *ranks[0], &b = *ranks[1];
  std::vector<float> mine(kChunk, 1), theirs(kChunk, 2);
  a.launch(sum_of(mine));
  CHECK_FALSE(a.rounds.advance());
  CHECK((a.arrived() == 1 && a.reduced() == 0 && a.rounds.completed() == 0));
  b.launch(sum_of(theirs));
  CHECK(b.rounds.advance());
  CHECK((b.reduced() == 1 && b.rounds.completed() == 0 && b.rounds.freed() == 0));
  CHECK(a.rounds.advance());
  CHECK((a.rounds.completed() == 1 && a.rounds.empty() && a.rounds.freed() == 1));
  CHECK(b.rounds.advance());
  CHECK(b.rounds.completed() == 1);
  CHECK((mine == std::vector<float>(kChunk, 3) && theirs == mine));
}

TEST_CASE("rounds: nobody is further ahead than it has stages, and every round takes its own part") {
  const auto ranks = ranks_of(2);
  Rank &a = *ranks[0], &b = *ranks[1];
  std::vector<float> mine(10 * kChunk), theirs(10 * kChunk);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = theirs[i] = static_cast<float>(i / 1000);
  const std::vector<float> before = mine;
  const Token end = a.launch(sum_of(mine));
  CHECK(end.rounds == 10);
  while (a.step()) {
  }
  CHECK(a.arrived() == kStages);
  b.launch(sum_of(theirs));
  while (b.step()) {
  }
  CHECK((b.arrived() == kStages && b.reduced() == kStages && b.rounds.completed() == 0));
  settle(ranks);
  CHECK((a.rounds.completed() == 10 && b.rounds.completed() == 10));
  for (std::size_t i = 0; i < mine.size(); ++i) REQUIRE((mine[i] == 2 * before[i] && theirs[i] == mine[i]));
}

TEST_CASE("rounds: after the first call who reads nobody waits for nobody") {
  const auto ranks = ranks_of(2);
  Rank &root = *ranks[0], &other = *ranks[1];
  std::vector<float> sent(3, 7), got(3);
  root.launch(Op::broadcast(buffer_of(std::span(sent)), 0));
  CHECK(root.rounds.completed() == 0);  // it may be that nobody else is there
  other.launch(Op::broadcast(buffer_of(std::span(got)), 0));
  settle(ranks);
  sent.assign(3, 8);
  root.launch(Op::broadcast(buffer_of(std::span(sent)), 0));
  CHECK(root.rounds.completed() == 2);
  sent.assign(3, 9);  // it is its owner's again
  other.launch(Op::broadcast(buffer_of(std::span(got)), 0));
  settle(ranks);
  CHECK(got == std::vector<float>(3, 8));
}

TEST_CASE("rounds: a call that differs aborts the group before anything is read, with both named") {
  for (const std::size_t count : {std::size_t{5}, kChunk}) {
    const auto ranks = ranks_of(2);
    std::vector<float> mine(count, 1), theirs(count, 2);
    ranks[0]->launch(sum_of(mine));
    ranks[1]->launch(Op::all_reduce(buffer_of(std::span(theirs)), ReduceOp::kMax));
    const std::string what = testing::thrown_by<Error>([&] { settle(ranks); });
    CHECK((contains(what, "called all_reduce(sum, ") && contains(what, "all_reduce(max, ")));
    CHECK(ranks[1]->view.is_aborted());
    CHECK(mine.front() + theirs.front() == 3);
  }
}

TEST_CASE("rounds: they are full before a published call is written over, and name what was called") {
  const auto ranks = ranks_of(2);
  Rank& a = *ranks[0];
  while (!a.rounds.is_full()) a.launch(Op::barrier());
  CHECK((a.calls == kMaxLaunched && a.rounds.oldest_ends() == 1 && a.rounds.oldest().sequence == 1));
  CHECK((*a.rounds.called(3) == encode(Op::barrier()) && a.rounds.called(0) == nullptr));
  for (std::size_t i = 0; i < kMaxLaunched; ++i) ranks[1]->launch(Op::barrier());
  settle(ranks);
  CHECK((a.rounds.empty() && a.rounds.completed() == kMaxLaunched));
}

TEST_CASE("rounds: a launch that finds no memory leaves nothing in flight, and the next one asks again") {
  const auto ranks = ranks_of(2);
  Rank& a = *ranks[0];
  std::byte* const page = a.view.region.stage(0, 1);
  const auto at = reinterpret_cast<std::uintptr_t>(page) / kPage * kPage;
  void* const hole = reinterpret_cast<void*>(at);
  const auto offset = static_cast<off_t>(at - reinterpret_cast<std::uintptr_t>(a.memory->data()));
  REQUIRE((offset > 0 && static_cast<std::size_t>(offset) < a.memory->size() && ::munmap(hole, kPage) == 0));
  std::vector<float> values(3 * kChunk, 1), others(3 * kChunk, 2);
  CHECK(contains(testing::thrown_by<Error>([&] { a.launch(sum_of(values)); }), "cannot populate"));
  CHECK((a.rounds.empty() && a.rounds.launched() == 0));
  CHECK_THROWS_AS(a.launch(sum_of(values)), Error);
  REQUIRE(::mmap(hole, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a.memory->fd(), offset) ==
          hole);
  a.calls = 0;  // as ProcessGroup does
  a.launch(sum_of(values));
  ranks[1]->launch(sum_of(others));
  settle(ranks);
  CHECK((values == std::vector<float>(3 * kChunk, 3) && others == values && a.rounds.empty()));
}

TEST_CASE("gateways: what another host has comes, and a frame that comes early is kept") {
  const auto ranks = ranks_of(3, {{0}, {1, 2}});
  std::vector<std::vector<float>> values;
  for (std::size_t r = 0; r < 3; ++r) values.emplace_back(3 * kChunk, static_cast<float>(1 << r));
  ranks[0]->launch(sum_of(values[0]));
  settle(ranks);
  CHECK(ranks[0]->gateways.missing_hosts(0, true) == std::set{1});
  CHECK(ranks[0]->reduced() == 0);
  for (const std::size_t r : {1, 2}) ranks[r]->launch(sum_of(values[r]));
  settle(ranks);
  for (const auto& of : values) CHECK(of == std::vector<float>(3 * kChunk, 7));
  for (const auto& rank : ranks) CHECK((rank->rounds.empty() && rank->rounds.completed() > 1));
  CHECK((ranks[0]->gateways.carry_rounds() && !ranks[2]->gateways.knows(0)));
}

TEST_CASE("gateways: a round is done once it has been sent, and no more are on the way than have landings") {
  const auto ranks = ranks_of(2, {{0}, {1}});
  Rank& root = *ranks[0];
  std::vector<float> sent(40 * kChunk), got(40 * kChunk);
  std::iota(sent.begin(), sent.end(), 0.0F);
  const Token end = root.launch(Op::broadcast(buffer_of(std::span(sent)), 0));
  REQUIRE(end.rounds > kLandings);
  settle(ranks);  // the other keeps what comes
  CHECK((root.reduced() == kLandings && root.rounds.completed() <= kLandings));
  ranks[1]->launch(Op::broadcast(buffer_of(std::span(got)), 0));
  settle(ranks);
  CHECK((root.rounds.completed() == end.rounds && ranks[1]->rounds.empty()));
  CHECK(got == sent);
}

TEST_CASE("gateways: a frame that is not as long as its round is refused") {
  auto options = options_of(2, {.nodes = {{0}, {1}}});
  Link liar(0, std::make_unique<SocketStream>(std::move(options[1].remote.at(0).socket)));
  Rank a(std::move(options[0]));
  std::vector<float> values(100);
  a.launch(sum_of(values));
  const std::vector<std::byte> bytes(8);
  liar.send({.kind = FrameKind::kPartials,
             .sequence = 1,
             .call = a.rounds.oldest().words(),
             .payload_bytes = bytes.size()},
            {bytes});
  liar.pump_out();
  CHECK(contains(testing::thrown_by<Error>([&] { a.step(); }), "rank 1 sent a frame out of turn"));
}

TEST_CASE("gateways: a frame of another call aborts the group, with both named") {
  const auto ranks = ranks_of(2, {{0}, {1}});
  std::vector<float> mine(100), theirs(50);
  ranks[0]->launch(sum_of(mine));
  const std::string what = testing::thrown_by<Error>([&] {
    ranks[1]->launch(sum_of(theirs));
    settle(ranks);
  });
  CHECK((contains(what, "sum, 100 x f32") && contains(what, "sum, 50 x f32")));
}

TEST_CASE("gateways: a rank that leaves is missed only where something is due from it") {
  auto ranks = ranks_of(2, {{0}, {1}});
  Rank& a = *ranks[0];
  ranks[1]->gateways.leave();
  ranks[1].reset();
  CHECK_FALSE(a.gateways.is_gone(1));
  while (a.step()) {
  }
  CHECK((a.gateways.has_left(1) && a.gateways.is_gone(1)));
  std::vector<float> values(100);
  const std::string what = testing::thrown_by<Error>([&] { a.launch(sum_of(values)); });
  CHECK(contains(what, "rank 1 left the group before all_reduce(sum, 100 x f32) #1"));
}

TEST_CASE("gateways: an abort is told once, with its reason") {
  const auto ranks = ranks_of(2, {{0}, {1}});
  CHECK(contains(testing::thrown_by<Error>([&] { ranks[0]->view.fail(AbortKind::kRequested, "enough"); }),
                 "enough"));
  for (int times = 0; times < 2; ++times) ranks[0]->gateways.tell_abort();
  CHECK(ranks[0]->gateways.has_told_abort());
  CHECK(contains(testing::thrown_by<Error>([&] { settle(ranks); }), "enough"));
  CHECK(ranks[1]->view.is_aborted());
}

TEST_CASE("messages: what nobody asked for is taken from the ring, and kept until somebody does") {
  const auto ranks = ranks_of(3);
  Rank &a = *ranks[0], &b = *ranks[1];
  std::vector<float> sent(1000, 4), got(1000), any(1000);
  const auto send = a.post(Op::send(buffer_of(std::span(sent)), 1, 5));
  const auto again = a.post(Op::send(buffer_of(std::span(sent)), 1, 6));
  while (a.step()) {
  }
  CHECK((send->done && again->done));
  CHECK_FALSE(b.messages.exchange(true));  // it knows of no message yet
  CHECK(b.messages.take_unasked());
  CHECK(b.messages.oldest() == nullptr);
  CHECK(b.post(Op::recv(buffer_of(std::span(got)), 0, 6))->done);
  const auto from_any = b.post(Op::recv(buffer_of(std::span(any)), kAnyRank, 5));
  CHECK((from_any->done && from_any->call.peer == 0));
  CHECK(b.messages.oldest() == nullptr);
  CHECK((got == sent && any == sent));
  CHECK_FALSE(ranks[2]->messages.take_unasked());
}

TEST_CASE("messages: parts of an all_to_all, a receive before each send, and the rank's own copied") {
  const auto ranks = ranks_of(3);
  std::vector<float> in{1, 2, 3, 4, 5, 6}, out(4, -1);
  const auto parts = ranks[1]->messages.parts_of(ranks[1]->completed(
      Op::all_to_all_v(buffer_of(std::span(in)), {1, 2, 3}, buffer_of(std::span(out)), {0, 2, 2})));
  REQUIRE(parts.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(parts[i].kind == (i % 2 == 0 ? OpKind::kRecv : OpKind::kSend));
    CHECK((parts[i].peer == (i < 2 ? 0 : 2) && of_collective(parts[i])));
  }
  CHECK((parts[0].count == 0 && parts[1].count == 1 && parts[2].count == 2 && parts[3].count == 3));
  CHECK((parts[2].output.data == &out[2] && parts[3].input.data == &in[3]));
  CHECK(out == std::vector<float>{2, 3, -1, -1});
}

TEST_CASE("waiting: it is for those whose words have not come, and for hosts that sent nothing") {
  const auto ranks = ranks_of(4, {{0, 1, 2}, {3}});
  std::vector<std::vector<float>> values(4, std::vector<float>(kChunk));
  Rank& a = *ranks[0];
  const Token end = a.launch(sum_of(values[0]));
  ranks[1]->launch(sum_of(values[1]));
  CHECK_FALSE(a.waiting.is_done(end));
  CHECK(a.waiting.missing(end) == std::vector{2, 3});
  ranks[3]->launch(sum_of(values[3]));
  settle(ranks);
  CHECK(a.waiting.missing(end) == std::vector{2});
  ranks[2]->launch(sum_of(values[2]));
  settle(ranks);
  CHECK(a.waiting.is_done(end));
  const auto receive = a.post(Op::recv(buffer_of(std::span(values[0])), kAnyRank));
  ranks[1]->view.mine.left = 1;
  CHECK(a.waiting.missing({.transfer = receive}) == std::vector{2, 3});
}

TEST_CASE(
    "waiting: the timeout runs from the last progress of any rank, and not while the rank stood still") {
  const auto ranks = ranks_of(2);
  std::vector<float> mine(kChunk), theirs(3 * kChunk);
  Rank& a = *ranks[0];
  const Token end = a.launch(sum_of(mine));
  Instant now{1h};
  a.waiting.begin();
  const auto look_for = [&](Duration duration) {
    for (const Instant until = now + duration; now < until; now += 20ms) a.waiting.check(end, now);
  };
  look_for(180ms);
  a.waiting.note_move();
  look_for(180ms);
  publish(ranks[1]->view.mine.delivered, 1);  // any word of any rank
  look_for(40ms);
  now += 10s;
  look_for(20ms);
  const std::string what = testing::thrown_by<Error>([&] { look_for(300ms); });
  CHECK(contains(
      what, "rank 0: all_reduce(sum, 65536 x f32) #1: no rank made progress for 0.2 s; waiting for rank 1"));
  CHECK(a.view.is_aborted());
}

TEST_CASE("waiting: a host that stalls says which of its ranks are missing; one that waits is not named") {
  const auto ranks = ranks_of(5, {{0}, {1, 2}, {3, 4}});
  std::vector<std::vector<float>> values(5, std::vector<float>(kChunk));
  std::vector<Token> ends(5);
  for (const std::size_t r : {0, 1, 3, 4}) ends[r] = ranks[r]->launch(sum_of(values[r]));
  settle(ranks);
  CHECK(ranks[0]->waiting.missing(ends[0]) == std::vector{1, 2});  // nobody has said more
  for (const std::size_t r : {0, 1, 3, 4}) {
    Rank& rank = *ranks[r];
    rank.waiting.begin();
    for (Instant now{1h}; now < Instant{1h} + 60ms; now += 20ms) rank.waiting.check(ends[r], now);
  }
  settle(ranks);
  CHECK(ranks[0]->waiting.missing(ends[0]) == std::vector{2});
  CHECK(ranks[3]->waiting.missing(ends[3]) == std::vector{2});
}

TEST_CASE("waiting: a rank that left is named where it is missing, and not where it has done its part") {
  const auto ranks = ranks_of(2);
  std::vector<float> mine(kChunk), theirs(kChunk);
  Rank &a = *ranks[0], &b = *ranks[1];
  const Token end = a.launch(sum_of(mine));
  b.launch(sum_of(theirs));
  b.rounds.advance();
  b.view.mine.left = 1;
  a.waiting.check(end, Instant{1h});
  settle(ranks);
  CHECK(a.waiting.is_done(end));
  const Token never = a.launch(sum_of(mine));
  CHECK(contains(testing::thrown_by<Error>([&] { a.waiting.check(never, Instant{1h}); }),
                 "rank 1 left the group before all_reduce(sum, 65536 x f32) #2"));
}
