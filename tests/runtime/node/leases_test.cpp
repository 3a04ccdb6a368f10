/// Leases of processes for light actors, executables on their way, and shared memory by name.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "runtime/core/memory_tag.hpp"
#include "runtime/node/output_lines.hpp"
#include "runtime/node/region_memory.hpp"
#include "runtime/wire/region_answer.hpp"
#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;

using F = Fixture;

namespace {

wire::LeaseAsk lease_ask(std::uint64_t request, NodeId node = F::kNode, const std::string& package = "") {
  return {request, node, package, {F::kNode, {9}}};
}

ProcessAddress leased(const Actions& actions, ProcessId asker) {
  const auto* answer = F::sent<wire::Answer>(actions, asker);
  REQUIRE(answer != nullptr);
  REQUIRE(answer->ok);
  return wire::decode<wire::LeaseAnswer>(answer->value).value().process;
}

}  // namespace

TEST_CASE(
    "A lease: the head is asked once a job, the worker is started once, who asked hears after its hello") {
  F f;
  const ProcessId driver = f.driver();
  REQUIRE(F::told<cluster::LeaseRequested>(f.said(driver, lease_ask(2)))->job == F::kJob);
  REQUIRE(f.said(driver, lease_ask(3)).empty());
  const auto granted = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, ""});
  const ProcessId worker = F::find<StartWorker>(granted)->process;
  REQUIRE(F::sent<wire::Answer>(granted, driver) == nullptr);
  const auto up = f.said(worker, wire::Hello{}, 1);
  REQUIRE(leased(up, driver) == ProcessAddress{F::kNode, worker});
  REQUIRE(up.size() == 3);  // Welcome and both answers
  REQUIRE(leased(f.said(driver, lease_ask(4)), driver) == ProcessAddress{F::kNode, worker});
  REQUIRE(F::told<cluster::NodeJoined>(f.on(HeadConnected{}))->leases == std::vector<JobId>{F::kJob});

  f.on(ProcessEnded{worker, "killed by signal 9 (SIGKILL)"});
  const auto anew = f.said(driver, lease_ask(5));
  REQUIRE(F::find<StartWorker>(anew) != nullptr);
  REQUIRE(F::told<cluster::LeaseRequested>(anew) == nullptr);
}

TEST_CASE("A lease of a job that does not run is refused, and asked for again after a head came back") {
  F f;
  const ProcessId driver = f.driver();
  f.said(driver, lease_ask(2));
  f.on(HeadLost{""});
  REQUIRE(F::told<cluster::LeaseRequested>(f.on(HeadConnected{})) != nullptr);
  const auto refused = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, false, "the job has ended"});
  REQUIRE(F::sent<wire::Answer>(refused, driver)->error.why == "the job has ended");
}

TEST_CASE("A worker that dies before its hello is started once more, then the lease fails with the reason") {
  F f;
  const ProcessId driver = f.driver();
  f.said(driver, lease_ask(2));
  const auto first = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, ""});
  const auto second = f.on(ProcessEnded{F::find<StartWorker>(first)->process, "exit code 1"});
  REQUIRE(F::sent<wire::Answer>(second, driver) == nullptr);
  const auto failed = f.on(ProcessEnded{F::find<StartWorker>(second)->process, "exit code 1"});
  REQUIRE(F::find<StartWorker>(failed) == nullptr);
  REQUIRE(F::sent<wire::Answer>(failed, driver)->error.why == "its worker could not be started: exit code 1");
}

TEST_CASE(
    "The end of a job ends its lease: who waits hears of it, its driver gets no other, and for another node "
    "the "
    "head is asked anew") {
  F f;
  const ProcessId driver = f.driver();
  f.link();
  f.said(driver, lease_ask(2));
  f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, ""});
  REQUIRE_FALSE(F::sent<wire::Answer>(f.head(cluster::EndJob{F::kNode, F::kJob, "done"}), driver)->ok);
  const auto refused = f.said(driver, lease_ask(3));
  REQUIRE(F::told<cluster::LeaseRequested>(refused) == nullptr);
  REQUIRE(F::sent<wire::Answer>(refused, driver)->error.code == ErrorCode::kRefused);
  REQUIRE(F::told<cluster::LeaseRequested>(f.peer_said(wire::PeerLeaseAsk{4, F::kJob, "", {F::kPeer, {9}}},
                                                       F::kPeer, F::kJob)) != nullptr);
}

TEST_CASE(
    "A job's last worker dies while a lease is asked for anew: none is started that the head has not "
    "granted") {
  // The simulator found it: the ask had come after the job's end, and nothing ever ended that worker.
  F f;
  const ProcessId driver = f.driver();
  f.link();
  f.said(driver, lease_ask(2));
  const auto granted = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, ""});
  const ProcessId worker = F::find<StartWorker>(granted)->process;
  f.head(cluster::EndJob{F::kNode, F::kJob, "done"});
  REQUIRE(F::told<cluster::LeaseRequested>(f.peer_said(wire::PeerLeaseAsk{3, F::kJob, "", {F::kPeer, {9}}},
                                                       F::kPeer, F::kJob)) != nullptr);
  REQUIRE(F::find<StartWorker>(f.on(ProcessEnded{worker, "killed by signal 9 (SIGKILL)"})) == nullptr);
  const auto refused = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, false, "the job is over"});
  REQUIRE_FALSE(F::sent_peer<wire::Answer>(refused)->ok);
}

// The simulator found it: the head was away when the driver died, and a newer one's light actors came into a
// process of the dead one's, which outlived both.
TEST_CASE("A lease ends with its driver: the head is asked anew whose job it is") {
  F f;
  f.link();
  const wire::PeerLeaseAsk ask{3, F::kJob, "", {F::kPeer, {9}}};
  f.peer_said(ask, F::kPeer, F::kJob);
  const auto granted = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, "", {F::kPeer, {9}}});
  const ProcessId worker = F::find<StartWorker>(granted)->process;
  f.said(worker, wire::Hello{}, 1);
  f.peer_said(wire::ProcessDown{{F::kPeer, {9}}, "killed by signal 9 (SIGKILL)"});
  f.on(ProcessEnded{worker, "killed by its node"});
  REQUIRE(F::told<cluster::LeaseRequested>(f.peer_said(ask, F::kPeer, F::kJob)) != nullptr);
  const auto anew = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, "", {F::kPeer, {10}}});
  REQUIRE(F::find<StartWorker>(anew)->driver == ProcessAddress{F::kPeer, {10}});
}

TEST_CASE("A lease on another node is asked of that node, and its answer passed back") {
  F f;
  const ProcessId driver = f.driver();
  f.link();
  const auto* ask = F::sent_peer<wire::PeerLeaseAsk>(f.said(driver, lease_ask(2, F::kPeer)));
  REQUIRE(ask != nullptr);
  wire::Answer answer{1, true, {}, wire::encode(wire::LeaseAnswer{{F::kPeer, {77}}})};
  REQUIRE(F::sent<wire::Answer>(f.peer_said(answer, {0xc}), driver) ==
          nullptr);  // not the one that was asked
  REQUIRE(leased(f.peer_said(answer), driver) == ProcessAddress{F::kPeer, {77}});
  REQUIRE(f.peer_said(answer).empty());
}

TEST_CASE("A lease that was asked of a node whose link breaks fails as unavailable, of a dead one as died") {
  F f;
  const ProcessId driver = f.driver();
  f.link();
  f.said(driver, lease_ask(2, F::kPeer));
  const auto lost = f.on(PeerLost{F::kPeer, true, "reset"});
  REQUIRE(F::sent<wire::Answer>(lost, driver)->error.code == ErrorCode::kUnavailable);
  f.said(driver, lease_ask(3, F::kPeer));
  const auto dead = f.head(cluster::NodeDead{F::kNode, F::kPeer, "it left"});
  REQUIRE(F::sent<wire::Answer>(dead, driver)->error.code == ErrorCode::kActorDied);
  REQUIRE(F::sent<wire::Answer>(f.said(driver, lease_ask(4, F::kPeer)), driver)->error.code ==
          ErrorCode::kActorDied);
}

TEST_CASE("Another node's lease is served, of the job its process belongs to") {
  F f;
  f.link();
  const wire::PeerLeaseAsk ask{5, F::kJob, "", {F::kPeer, {9}}};
  REQUIRE(f.peer_said(ask, F::kPeer, {8}).empty());
  REQUIRE(F::told<cluster::LeaseRequested>(f.peer_said(ask, F::kPeer, F::kJob)) != nullptr);
  const auto granted = f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, ""});
  const auto up = f.said(F::find<StartWorker>(granted)->process, wire::Hello{}, 1);
  REQUIRE(F::sent_peer<wire::Answer>(up)->request == 5);
  REQUIRE(F::sent_peer<wire::Answer>(up)->ok);
}

// Executables.

TEST_CASE("An executable that is not here is fetched from the driver's node, a piece at a time") {
  F f;
  f.link();
  const auto spec = F::spec(true, F::kJob, {F::kPeer, {9}}, "abc");
  const auto asked = f.head(cluster::StartActor{F::kNode, {1}, spec, ""});
  REQUIRE(F::sent_peer<wire::PackageAsk>(asked)->offset == 0);
  const wire::PackagePart part{"abc", 0, 200, wire::Bytes(100)};
  REQUIRE(f.peer_said(part, {0xc}).empty());
  REQUIRE(F::find<TakePart>(f.peer_said(part)) != nullptr);
  REQUIRE(F::sent_peer<wire::PackageAsk>(f.on(PartTaken{"abc", 100, false, {}}))->offset == 100);
  f.peer_said(wire::PackagePart{"abc", 100, 200, wire::Bytes(100)});
  const auto whole = f.on(PartTaken{"abc", 200, true, {}});
  REQUIRE(F::find<StartWorker>(whole)->package == "abc");
  REQUIRE(F::find<GivePart>(f.peer_said(wire::PackageAsk{"abc", 0})) != nullptr);
  REQUIRE(F::find<GivePart>(f.peer_said(wire::PackageAsk{"own", 0}))->own);
  REQUIRE(F::sent_peer<wire::PackagePart>(f.peer_said(wire::PackageAsk{"other", 0}))->total == 0);
}

TEST_CASE("A piece that does not come is asked for again, and given up after 20 s") {
  F f;
  f.link();
  f.head(cluster::StartActor{F::kNode, {1}, F::spec(true, F::kJob, {F::kPeer, {9}}, "abc"), ""});
  int asks = 0;
  const cluster::ActorFailed* failed = nullptr;
  Actions last;
  for (int i = 0; i < 21; ++i) {
    last = f.tick();
    asks += F::sent_peer<wire::PackageAsk>(last) != nullptr;
    failed = F::told<cluster::ActorFailed>(last);
  }
  REQUIRE(asks == 5);
  REQUIRE(failed->error.code == ErrorCode::kTimeout);
}

TEST_CASE("A lease waits for the executable, too") {
  F f;
  f.link();
  const ProcessId driver = f.driver();
  auto ask = lease_ask(2, F::kNode, "abc");
  ask.driver = {F::kPeer, {9}};
  f.said(driver, ask);
  REQUIRE(F::sent_peer<wire::PackageAsk>(f.head(cluster::LeaseAnswered{F::kNode, F::kJob, true, ""})) !=
          nullptr);
  f.peer_said(wire::PackagePart{"abc", 0, 100, wire::Bytes(100)});
  REQUIRE(F::find<StartWorker>(f.on(PartTaken{"abc", 100, true, {}}))->package == "abc");
}

TEST_CASE("An executable whose node dies fails those that wait for it") {
  F f;
  f.link();
  f.head(cluster::StartActor{F::kNode, {1}, F::spec(true, F::kJob, {F::kPeer, {9}}, "abc"), ""});
  const auto dead = f.head(cluster::NodeDead{F::kNode, F::kPeer, "it left"});
  REQUIRE(F::told<cluster::ActorFailed>(dead)->error.why == "its node is gone: it left");
}

// Regions.

TEST_CASE("Names of shared memory are a job's own: no other opens or drops them") {
  F f;
  const ProcessId one = f.worker({1}, true, {7});
  const ProcessId two = f.worker({2}, true, {8});
  const auto first = f.said(one, wire::RegionAsk{1, "group", 4096, "rank 0", true});
  REQUIRE(F::sent<wire::Answer>(first, one)->ok);
  REQUIRE(F::find<MakeRegion>(f.said(two, wire::RegionAsk{1, "group", 4096, "rank 0", true})) != nullptr);
  f.said(two, wire::RegionDrop{"group"});
  REQUIRE(f.machine.regions().size() == 1);
  // The first is still there, and the same.
  REQUIRE(F::find<MakeRegion>(f.said(one, wire::RegionAsk{2, "group", 4096, "rank 0", true})) == nullptr);
}

TEST_CASE("A region is attached to its answer once it is made, for all that asked meanwhile") {
  F f;
  const ProcessId one = f.worker({1});
  const ProcessId two = f.worker({2});
  const wire::RegionAsk ask{1, "group", 4096, "rank", true};
  const auto first = f.machine.on(LocalSaid{one, ask, 0}, f.now);
  REQUIRE(first.size() == 1);
  REQUIRE(f.machine.on(LocalSaid{two, ask, 0}, f.now).empty());
  const RegionId region = F::find<MakeRegion>(first)->region;
  const auto made = f.machine.on(RegionMade{region, std::nullopt}, f.now);
  REQUIRE(made.size() == 2);
  REQUIRE(F::find<SendLocal>(made)->attach.region == region);
  REQUIRE(F::find<SendLocal>(made)->attach.kind == Attach::kRegion);
  // One that cannot be made is no region.
  const auto other = f.machine.on(LocalSaid{one, wire::RegionAsk{2, "x", 1, "", false}, 0}, f.now);
  const auto failed = f.machine.on(
      RegionMade{F::find<MakeRegion>(other)->region, ErrorInfo{ErrorCode::kIo, "no", "memory", ""}}, f.now);
  REQUIRE_FALSE(F::sent<wire::Answer>(failed, one)->ok);
  REQUIRE(f.machine.regions().size() == 1);
}

TEST_CASE("Sizes of shared memory have limits, which the error names") {
  // Story: a region of 12,000 MiB had its node declared dead; one of 10 TB took the machine down.
  Limits limits;
  limits.region_bytes = 1000;
  limits.regions_bytes = 1500;
  F f(limits);
  const ProcessId one = f.worker({1});
  const auto large = f.said(one, wire::RegionAsk{1, "large", 1001, "", false});
  REQUIRE(F::sent<wire::Answer>(large, one)->error.code == ErrorCode::kLimit);
  REQUIRE(F::sent<wire::Answer>(large, one)->error.why ==
          "1001 bytes is more than the limit of 1000 bytes a region");
  REQUIRE(F::sent<wire::Answer>(f.said(one, wire::RegionAsk{2, "a", 1000, "", false}), one)->ok);
  const auto full = f.said(one, wire::RegionAsk{3, "b", 600, "", false});  // objects may make room
  REQUIRE(wire::decode<wire::RegionAnswer>(F::sent<wire::Answer>(full, one)->value).value().full);
  f.said(one, wire::RegionDrop{"a"});
  REQUIRE(F::sent<wire::Answer>(f.said(one, wire::RegionAsk{4, "b", 600, "", false}), one)->ok);
  const std::uint64_t most = ~std::uint64_t{0};
  REQUIRE_FALSE(F::sent<wire::Answer>(f.said(one, wire::RegionAsk{5, "c", most, "", false}), one)->ok);
  REQUIRE_FALSE(F::sent<wire::Answer>(f.said(one, wire::RegionAsk{6, "d", 100, "", true}), one)->ok);
}

TEST_CASE("A death aborts the regions that were held, once each, and drops those that nobody holds") {
  F f;
  const ProcessId dying = f.worker({1});
  const ProcessId other = f.worker({2});
  f.said(dying, wire::RegionAsk{1, "shared", 4096, "rank 0", true});
  f.said(other, wire::RegionAsk{1, "shared", 4096, "rank 1", true});
  f.said(dying, wire::RegionAsk{2, "own", 4096, "rank 0", true});
  f.said(dying, wire::RegionAsk{3, "batches", 4096, "loader", false});
  f.said(other, wire::RegionAsk{4, "other", 4096, "rank 1", true});
  const auto ended = f.on(ProcessEnded{dying, "killed by signal 9 (SIGKILL)"});
  const auto* abort = F::find<AbortRegions>(ended);
  REQUIRE(abort->regions.size() == 2);
  REQUIRE(abort->reason == "rank 0 died: killed by signal 9 (SIGKILL)");
  REQUIRE(f.machine.regions().size() == 2);
  REQUIRE(f.machine.regions().bytes() == 2 * 4096);
}

TEST_CASE("Memory of a process's objects goes with it, and copies with the last that opened them") {
  // Story: memory that a reader had opened once stayed until the reader ended, long after its owner.
  F f;
  const ProcessId owner = f.worker({1});
  const ProcessId reader = f.worker({2});
  f.said(owner, wire::RegionAsk{1, "object/1.1.1", 4096, "", false});
  f.said(reader, wire::RegionAsk{1, "object/1.1.1", 4096, "", false});
  f.said(owner, wire::RegionAsk{2, "copy/object/9.9.1", 4096, "", false});
  f.said(reader, wire::RegionAsk{2, "copy/object/9.9.1", 4096, "", false});
  f.on(ProcessEnded{owner, "killed"});
  REQUIRE(f.machine.regions().size() == 1);
  f.on(ProcessEnded{reader, "killed"});
  REQUIRE(f.machine.regions().size() == 0);
}

TEST_CASE("Memory of a copy that has gone is lent for the job's next one, and counts until then") {
  // Story: a GiB from another node took twice the wire's time, since each landed in fresh pages.
  constexpr std::uint64_t kBytes = RegionNames::kLeastKept;
  Limits limits;
  limits.regions_bytes = limits.region_bytes = 16 * kBytes;
  F f(limits);
  const ProcessId one = f.worker({1});
  const ProcessId stranger = f.worker({2}, true, {8});
  const auto asks = [&](ProcessId who, const char* key, std::uint64_t bytes) {
    return f.said(who, wire::RegionAsk{1, key, bytes, "", false});
  };
  const auto first = asks(one, "copy/a", kBytes);
  const RegionId memory = F::find<MakeRegion>(first)->region;
  REQUIRE_FALSE(F::find<MakeRegion>(first)->instead_of);
  REQUIRE(F::find<DropRegion>(f.said(one, wire::RegionDrop{"copy/a"})) == nullptr);
  REQUIRE(f.machine.regions().size() == 0);
  REQUIRE(f.machine.regions().bytes() == kBytes);

  // Neither another job nor another kind of memory, nor what is far smaller, gets it.
  REQUIRE_FALSE(F::find<MakeRegion>(asks(stranger, "copy/b", kBytes))->instead_of);
  REQUIRE_FALSE(F::find<MakeRegion>(asks(one, "object/1.1.1", kBytes))->instead_of);
  REQUIRE_FALSE(F::find<MakeRegion>(asks(one, "copy/c", kBytes / 4))->instead_of);
  REQUIRE_FALSE(F::find<MakeRegion>(asks(one, "copy/d", kBytes + 1))->instead_of);
  const auto again = asks(one, "copy/e", kBytes - 4096);
  REQUIRE(F::find<MakeRegion>(again)->instead_of == memory);
  REQUIRE(F::find<MakeRegion>(again)->bytes == kBytes);

  // Its last reader's death keeps it, too; a time without use, or the end of its job, gives it back.
  const std::uint64_t before = f.machine.regions().bytes();
  f.on(ProcessEnded{one, "killed"});
  f.now += RegionNames::kKept / 2;
  REQUIRE(F::find<DropRegion>(f.on(Tick{})) == nullptr);
  f.now += RegionNames::kKept / 2;
  REQUIRE(F::find<DropRegion>(f.on(Tick{})) != nullptr);
  REQUIRE(f.machine.regions().bytes() < before);
  f.said(stranger, wire::RegionDrop{"copy/b"});
  REQUIRE(f.machine.regions().bytes() == kBytes);
  REQUIRE(F::find<DropRegion>(f.head(cluster::EndJob{F::kNode, {8}, "its driver ended"})) != nullptr);
  REQUIRE(f.machine.regions().bytes() == 0);
}

TEST_CASE(
    "Memory that is kept for copies goes first when the store is full, and is an eighth of it at most") {
  constexpr std::uint64_t kBytes = RegionNames::kLeastKept;
  Limits limits;
  limits.regions_bytes = limits.region_bytes = 16 * kBytes;
  F f(limits);
  const ProcessId one = f.worker({1});
  for (const char* key : {"copy/a", "copy/b", "copy/c"})
    f.said(one, wire::RegionAsk{1, key, kBytes, "", false});
  f.said(one, wire::RegionAsk{1, "copy/large", 3 * kBytes, "", false});
  for (const char* key : {"copy/a", "copy/b", "copy/c", "copy/large"}) f.said(one, wire::RegionDrop{key});
  REQUIRE(f.machine.regions().bytes() == 2 * kBytes);
  const auto all = f.said(one, wire::RegionAsk{2, "object/1.1.1", 15 * kBytes, "", false});
  REQUIRE(F::find<MakeRegion>(all) != nullptr);
  REQUIRE(F::find<DropRegion>(all) != nullptr);
  REQUIRE(f.machine.regions().bytes() == 16 * kBytes);
}

TEST_CASE("Memory is used again once nobody reads it, and only if all of it had been written") {
  RegionMemory regions;
  const auto inode = [&](RegionId region) {
    struct stat info {};
    REQUIRE(::fstat(regions.descriptor(region).value().get(), &info) == 0);
    return info.st_ino;
  };
  REQUIRE(regions.make({{1}, "copy/a", 4096, {}}));
  const auto first = inode({1});
  // Nobody has said that it is whole: somebody may be writing still.
  REQUIRE(regions.make({{2}, "copy/b", 4096, {1}}));
  REQUIRE(inode({2}) != first);
  REQUIRE_FALSE(regions.descriptor({1}));

  const auto second = inode({2});
  const auto fd = regions.descriptor({2}).value();
  REQUIRE(write_tag(fd, {7, 8}));
  auto reader = reopen(fd, O_RDONLY).value();
  REQUIRE(::flock(reader.get(), LOCK_SH) == 0);
  REQUIRE(regions.make({{3}, "copy/c", 4096, {2}}));
  REQUIRE(inode({3}) != second);

  const auto third = inode({3});
  REQUIRE(write_tag(regions.descriptor({3}).value(), {7, 8}));
  REQUIRE(regions.make({{4}, "copy/d", 4096, {3}}));
  REQUIRE(inode({4}) == third);
  REQUIRE(read_tag(regions.descriptor({4}).value()).value() == MemoryTag{});  // who comes late finds nothing
}

TEST_CASE("A full store names who can make room for an object, the largest first") {
  Limits limits;
  limits.region_bytes = limits.regions_bytes = 5 * 4096;
  F f(limits);
  const ProcessId one = f.worker({1});
  const ProcessId two = f.worker({2});
  const ProcessId stranger = f.worker({3}, true, {8});
  f.said(one, wire::RegionAsk{1, "object/1.1.1", 4096, "", false});
  f.said(two, wire::RegionAsk{1, "object/1.2.1", 2 * 4096, "", false});
  f.said(stranger, wire::RegionAsk{1, "object/1.3.1", 4096, "", false});
  const auto asked = f.said(one, wire::RegionAsk{2, "object/1.1.2", 2 * 4096, "", false});
  const auto* answer = F::sent<wire::Answer>(asked, one);
  REQUIRE(answer->ok);
  const auto full = wire::decode<wire::RegionAnswer>(answer->value).value();
  REQUIRE(full.full);
  REQUIRE(full.store_bytes == 5 * 4096);
  REQUIRE(full.holders == std::vector<ProcessId>{two, one});  // another job's are its own
  REQUIRE(full.why.code == ErrorCode::kLimit);
  // What can never fit is an error, and nobody makes room for it.
  REQUIRE_FALSE(
      F::sent<wire::Answer>(f.said(one, wire::RegionAsk{3, "object/1.1.3", 6 * 4096, "", false}), one)->ok);
}

TEST_CASE("A ring is made once for two processes, and names each one's job to the other") {
  F f;
  const ProcessId one = f.worker({1}, true, {7});
  const ProcessId two = f.worker({2}, true, {8});
  const auto asked = f.said(one, wire::RingAsk{1, two});
  const auto* ring = F::find<MakeRing>(asked);
  REQUIRE(ring->offer_to_first.first);
  REQUIRE(ring->offer_to_first.job == JobId{8});
  REQUIRE(ring->offer_to_second.job == JobId{7});
  REQUIRE(F::sent<wire::Answer>(asked, one)->ok);
  REQUIRE(F::find<MakeRing>(f.said(two, wire::RingAsk{1, one})) == nullptr);
  REQUIRE_FALSE(F::sent<wire::Answer>(f.said(one, wire::RingAsk{2, {12345}}), one)->ok);
  REQUIRE_FALSE(F::sent<wire::Answer>(f.said(one, wire::RingAsk{3, one}), one)->ok);
}

// Lines of output.

TEST_CASE("An empty line is a line") {
  // Story: a worker that wrote "\n" to standard error made its node read 300 bytes of its heap into the
  // reason of the worker's death (size() - 2 wrapped).
  OutputLines lines;
  REQUIRE(lines.feed("\n") == "\n");
  REQUIRE(lines.last_line().empty());
  REQUIRE(lines.feed("what(): bad\n\n\n") == "what(): bad\n\n\n");
  REQUIRE(lines.last_line() == "what(): bad");
}

// Was: a task that ended its worker was told with what an earlier one had written there.
TEST_CASE("A line is of the turn in which it began, behind what was unread then") {
  OutputLines lines;
  lines.feed("first\n", 1);
  REQUIRE(lines.last_line(1) == "first");
  REQUIRE(lines.last_line(2).empty());
  lines.feed("late\nown\n", 2);  // 5 bytes of it were there before
  REQUIRE(lines.last_line(2, 5) == "own");
  REQUIRE(lines.last_line(2, 6).empty());
  lines.feed("half", 2);
  lines.feed(" a line\n", 3);
  REQUIRE(lines.last_line(3).empty());
  lines.feed("rest", 3);
  lines.finish();
  REQUIRE(lines.last_line(3, 8) == "rest");
}

TEST_CASE("Lines are cut where they end, or at 64 KiB") {
  OutputLines lines;
  REQUIRE(lines.feed("half").empty());
  REQUIRE(lines.feed(" a line\nand") == "half a line\n");
  REQUIRE(lines.finish() == "and\n");
  REQUIRE(lines.finish().empty());
  REQUIRE(lines.feed(std::string(100'000, 'x')).size() == 100'001);
  REQUIRE(lines.last_line().size() == 300);
}

TEST_CASE("Lines for a driver that does not read are kept for as long as it takes") {
  OutputHold hold;
  REQUIRE(hold.is_empty());
  hold.keep("a\nb\n");
  hold.keep("c\n");
  REQUIRE_FALSE(hold.is_empty());
  REQUIRE(hold.take() == "a\nb\nc\n");
  REQUIRE(hold.is_empty());
}

TEST_CASE("What a driver has not written bounds what its workers here send, and their last words go") {
  // Was: a driver said "hold" and "go on" to its node. What was under way meanwhile had no bound, so endless
  // output of two nodes filled the driver's link with 256 MiB, for which its node killed it.
  F f;
  const ProcessId driver = f.driver();
  const auto start_worker = [&](ActorId actor) {
    const auto start =
        f.head(cluster::StartActor{F::kNode, actor, F::spec(true, F::kJob, {F::kNode, driver}), ""});
    return F::find<StartWorker>(start)->process;
  };
  const ProcessId worker = start_worker({1}), other = start_worker({2});
  const std::string half(Limits{}.output_window / 2, 'x');
  const auto first = f.on(WorkerWrote{worker, false, half});
  REQUIRE(F::sent<wire::Output>(first, driver)->node == F::kNode);
  REQUIRE(F::find<HoldOutput>(f.on(WorkerWrote{other, true, half})) == nullptr);
  const auto held = f.on(WorkerWrote{worker, false, "two\n"});
  REQUIRE(F::sent<wire::Output>(held, driver) == nullptr);
  REQUIRE(F::find<HoldOutput>(held)->text == "two\n");
  // What a worker that ends had written cannot wait: with its process goes what is kept for it.
  f.machine.on(ProcessEnding{other, "exit code 3"}, f.now);
  REQUIRE(F::sent<wire::Output>(f.on(WorkerWrote{other, true, "last\n"}), driver) != nullptr);

  const auto taken = [&](std::size_t bytes) {
    return f.said(driver, wire::OutputTaken{{}, F::kNode, bytes});
  };
  REQUIRE(F::find<RetryOutput>(taken(half.size() / 2)) == nullptr);
  REQUIRE(F::find<RetryOutput>(taken(half.size())) != nullptr);
  REQUIRE(F::sent<wire::Output>(f.on(WorkerWrote{worker, false, "two\n"}), driver) != nullptr);
  REQUIRE(F::find<RetryOutput>(taken(SIZE_MAX)) == nullptr);
  REQUIRE(F::find<KillProcess>(f.said(worker, wire::OutputTaken{{}, F::kNode, 1})) != nullptr);
}

TEST_CASE("A driver on another node makes room for its workers here, or its link breaks") {
  F f;
  f.link();
  const ProcessAddress driver{F::kPeer, {9}};
  const auto start = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true, F::kJob, driver), ""});
  const ProcessId worker = F::find<StartWorker>(start)->process;
  const std::string much(Limits{}.output_window, 'x');
  const auto goes = [&] {
    const auto wrote = f.on(WorkerWrote{worker, true, much});
    return F::sent_peer<wire::Output>(wrote) != nullptr && F::find<HoldOutput>(wrote) == nullptr;
  };
  REQUIRE(goes());
  REQUIRE_FALSE(goes());
  REQUIRE(F::find<RetryOutput>(f.peer_said(wire::OutputTaken{driver, F::kNode, much.size()}, {0xc})) ==
          nullptr);  // not of that node
  REQUIRE(F::find<RetryOutput>(f.peer_said(wire::OutputTaken{driver, F::kNode, much.size()})) != nullptr);
  REQUIRE(goes());
  REQUIRE_FALSE(goes());
  REQUIRE(F::find<RetryOutput>(f.on(PeerLost{F::kPeer, true, "reset"})) != nullptr);
  REQUIRE(goes());
}

TEST_CASE("A driver here makes room on the node that its output came from") {
  F f;
  const ProcessId driver = f.driver();
  f.link();
  wire::Output lying{"w", false, "line\n"};
  lying.node = F::kNode;
  REQUIRE(F::sent<wire::Output>(f.peer_said(lying, F::kPeer, {}, driver), driver)->node == F::kPeer);
  const auto taken = f.said(driver, wire::OutputTaken{{}, F::kPeer, 5});
  REQUIRE(F::sent_peer<wire::OutputTaken>(taken)->driver == ProcessAddress{F::kNode, driver});
  REQUIRE(F::sent_peer<wire::OutputTaken>(taken)->bytes == 5);
}
