/// Nodes and frames: who may say what, how nodes link at first use, and that nothing vanishes.

#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;

using F = Fixture;

// Who may say what.

TEST_CASE("A process speaks in its own name and for its own job alone") {
  F f;
  const ProcessId one = f.worker({1}, true, {7});
  const ProcessId two = f.worker({2}, true, {8});
  REQUIRE(f.call(one, {F::kNode, two}).verdict == Verdict::kToProcess);
  REQUIRE(f.call(one, {F::kNode, two}, wire::FrameKind::kCall, {8}).verdict == Verdict::kBreach);
  REQUIRE(f.call(one, {F::kNode, two}, wire::FrameKind::kCall, {}).verdict == Verdict::kBreach);
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.from = {F::kNode, two};
  header.to = {F::kNode, one};
  header.job = {7};
  const Route forged = f.machine.route({F::kNode, one}, header, 100, f.now);
  REQUIRE(forged.verdict == Verdict::kBreach);
  REQUIRE(forged.error.why == "it speaks in another's name");
  const auto killed = f.on(LocalBroke{one, forged.error.why});
  REQUIRE(F::find<KillProcess>(killed)->reason == "it broke the protocol: it speaks in another's name");
}

TEST_CASE("A process sends control messages to its node alone") {
  F f;
  const ProcessId one = f.worker({1});
  REQUIRE(f.call(one, {F::kNode, {}}, wire::FrameKind::kControl).verdict == Verdict::kToNode);
  REQUIRE(f.call(one, {}, wire::FrameKind::kControl, {}).verdict == Verdict::kToNode);
  REQUIRE(f.call(one, {F::kPeer, {}}, wire::FrameKind::kControl).verdict == Verdict::kBreach);
  REQUIRE(f.call(one, {F::kNode, one}, wire::FrameKind::kControl).verdict == Verdict::kBreach);
}

TEST_CASE("A node speaks in no other node's name") {
  F f;
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.from = {{0xc}, {1}};
  header.to = {F::kNode, {2}};
  REQUIRE(f.machine.route({F::kPeer, {}}, header, 100, f.now).verdict == Verdict::kBreach);
}

TEST_CASE("Actors are constructed and stopped in processes of the same job alone") {
  F f;
  const ProcessId one = f.worker({1}, true, {7});
  const ProcessId two = f.worker({2}, true, {8});
  const Route spawn = f.call(one, {F::kNode, two}, wire::FrameKind::kSpawn);
  REQUIRE(spawn.verdict == Verdict::kRefuse);
  REQUIRE(spawn.error.code == ErrorCode::kRefused);
  REQUIRE(f.call(one, {F::kNode, two}, wire::FrameKind::kStop).verdict == Verdict::kDrop);
  REQUIRE(f.call(one, {F::kNode, two}, wire::FrameKind::kMonitor).verdict == Verdict::kToProcess);
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kSpawn;
  header.from = {F::kPeer, {1}};
  header.to = {F::kNode, one};
  header.job = {7};
  REQUIRE(f.machine.route({F::kPeer, {}}, header, 100, f.now).verdict == Verdict::kToProcess);
  header.job = {8};
  REQUIRE(f.machine.route({F::kPeer, {}}, header, 100, f.now).verdict == Verdict::kRefuse);
}

// Frames to the dead.

TEST_CASE("A call to a dead process is refused with the reason of its death, a reply is dropped") {
  F f;
  const ProcessId caller = f.worker({1});
  const ProcessId dead = f.worker({2});
  f.on(ProcessEnded{dead, "killed by signal 11 (SIGSEGV)"});
  const Route call = f.call(caller, {F::kNode, dead});
  REQUIRE(call.verdict == Verdict::kRefuse);
  REQUIRE(call.error.code == ErrorCode::kActorDied);
  REQUIRE(call.error.why == "killed by signal 11 (SIGSEGV)");
  REQUIRE(f.call(caller, {F::kNode, dead}, wire::FrameKind::kMonitor).verdict == Verdict::kRefuse);
  REQUIRE(f.call(caller, {F::kNode, dead}, wire::FrameKind::kReply).verdict == Verdict::kDrop);
}

TEST_CASE("Of the dead the last 4,096 are remembered") {
  EndReasons<ProcessId> dead(4096);
  for (std::uint64_t i = 1; i <= 5000; ++i) dead.add({i}, "old age");
  REQUIRE(dead.size() == 4096);
  REQUIRE(dead.find({904}) == nullptr);
  REQUIRE(*dead.find({905}) == "old age");
}

TEST_CASE("What a dying process sent before it died goes on, until its death is told") {
  F f;
  const ProcessId dying = f.worker({1});
  const ProcessId other = f.worker({2});
  f.machine.on(ProcessEnding{dying, "exit code 0"}, f.now);
  REQUIRE(f.call(dying, {F::kNode, other}, wire::FrameKind::kReply).verdict == Verdict::kToProcess);
  f.machine.on(OutputDrained{dying, ""}, f.now);
  REQUIRE(f.call(dying, {F::kNode, other}, wire::FrameKind::kReply).verdict == Verdict::kDrop);
}

// Peers at first use.

TEST_CASE("The first frame to a node asks the head for it, waits, and goes once the connection is up") {
  F f;
  const ProcessId caller = f.worker({1});
  const Route first = f.call(caller, {F::kPeer, {5}});
  REQUIRE(first.verdict == Verdict::kHold);
  REQUIRE(F::told<cluster::PeerWanted>(first.actions)->peer == F::kPeer);
  const Route second = f.call(caller, {F::kPeer, {5}});
  REQUIRE(second.verdict == Verdict::kHold);
  REQUIRE(second.actions.empty());
  const auto answered = f.head(cluster::PeerAnswered{F::kNode, true, F::info(F::kPeer), ""});
  REQUIRE(F::find<AllowPeer>(answered)->public_key == F::info(F::kPeer).public_key);
  REQUIRE(F::find<ConnectPeer>(answered)->peer.address == "10.0.0.2:1");
  REQUIRE(f.call(caller, {F::kPeer, {5}}).verdict == Verdict::kHold);
  REQUIRE(F::find<ReleaseHeld>(f.on(PeerConnected{F::kPeer})) != nullptr);
  REQUIRE(f.call(caller, {F::kPeer, {5}}).verdict == Verdict::kToPeer);
}

TEST_CASE("What waits for nodes that nobody knows has a bound in all") {
  // Was: each node that a process named was remembered, and 32 MiB for each of them kept while the head was
  // away.
  Limits limits;
  limits.held_bytes = 1000;
  limits.unknown_peers = 8;
  F f(limits);
  std::size_t held = 0;
  for (std::uint64_t i = 0; i < 8; ++i)
    held += f.send_to({{0x100 + i}, {1}}, 700).verdict == Verdict::kHold ? 700 : 0;
  REQUIRE(held == 5 * 700);
  REQUIRE(f.send_to({{0x100}, {1}}, 700).verdict == Verdict::kRefuse);
  F many(limits);
  for (std::uint64_t i = 0; i < 8; ++i)
    REQUIRE(many.send_to({{0x100 + i}, {1}}, 1).verdict == Verdict::kHold);
  const auto refused = many.send_to({{0x200}, {1}}, 1);
  REQUIRE(refused.verdict == Verdict::kRefuse);
  REQUIRE(F::told<cluster::PeerWanted>(refused.actions) == nullptr);
  REQUIRE(many.send_to({{0x100}, {1}}, 1).verdict == Verdict::kHold);
}

TEST_CASE("A wanted node is asked for again when the head comes back, and linked ones are named") {
  F f;
  f.send_to({F::kPeer, {5}});
  f.link({0xc});
  f.on(HeadLost{""});
  const auto joined = f.on(HeadConnected{});
  REQUIRE(F::told<cluster::NodeJoined>(joined)->peers == std::vector<NodeId>{{0xc}});
  REQUIRE(F::told<cluster::PeerWanted>(joined)->peer == F::kPeer);
}

TEST_CASE("Frames to a node that is dead are refused with the head's reason, now and later") {
  F f;
  const ProcessId caller = f.worker({1});
  f.call(caller, {F::kPeer, {5}});
  const auto dead = f.head(
      cluster::PeerAnswered{F::kNode, false, {F::kPeer, "", "", "", 0, false}, "no heartbeat for 6.0 s"});
  REQUIRE(F::find<RefuseHeld>(dead)->error.code == ErrorCode::kActorDied);
  REQUIRE(F::find<RefuseHeld>(dead)->error.why == "no heartbeat for 6.0 s");
  REQUIRE(F::sent<wire::NodeDown>(dead, caller)->node == F::kPeer);
  const Route later = f.call(caller, {F::kPeer, {5}});
  REQUIRE(later.verdict == Verdict::kRefuse);
  REQUIRE(later.error.why == "no heartbeat for 6.0 s");
  // One that began after the death was told took the process for dead, whose node is.
  REQUIRE(F::sent<wire::NodeDown>(later.actions, caller)->reason == "no heartbeat for 6.0 s");
}

TEST_CASE("What waits for a connection is bounded; the rest is refused as unavailable") {
  F f;
  const ProcessId caller = f.worker({1});
  const std::size_t half = kLinkQueueBytes / 2;
  REQUIRE(f.call(caller, {F::kPeer, {5}}, wire::FrameKind::kCall, F::kJob, half).verdict == Verdict::kHold);
  REQUIRE(f.call(caller, {F::kPeer, {5}}, wire::FrameKind::kCall, F::kJob, half).verdict == Verdict::kHold);
  const Route full = f.call(caller, {F::kPeer, {5}});
  REQUIRE(full.verdict == Verdict::kRefuse);
  REQUIRE(full.error.code == ErrorCode::kUnavailable);
}

TEST_CASE("A connection that is not made within 10 s refuses what waited as unavailable") {
  F f;
  const ProcessId caller = f.worker({1});
  f.call(caller, {F::kPeer, {5}});
  f.head(cluster::PeerAnswered{F::kNode, true, F::info(F::kPeer), ""});
  Actions last;
  for (int i = 0; i < 9; ++i) {
    f.said(caller, wire::Pulse{});
    REQUIRE(F::find<RefuseHeld>(f.tick()) == nullptr);
  }
  const auto refused = f.tick();
  REQUIRE(F::find<RefuseHeld>(refused)->error.code == ErrorCode::kUnavailable);
  REQUIRE(F::find<RefuseHeld>(refused)->error.why == "no connection to node b at 10.0.0.2:1 within 10 s");
  REQUIRE(f.call(caller, {F::kPeer, {5}}).verdict == Verdict::kRefuse);  // at once, until it is up
  f.on(PeerConnected{F::kPeer});
  REQUIRE(f.call(caller, {F::kPeer, {5}}).verdict == Verdict::kToPeer);
}

TEST_CASE("A node that will connect to us is let in, and connected to when there is something for it") {
  F f;
  const auto expected = f.head(cluster::ExpectPeer{F::kNode, F::info(F::kPeer)});
  REQUIRE(F::find<AllowPeer>(expected)->node == F::kPeer);
  REQUIRE(F::find<ConnectPeer>(expected) == nullptr);
  f.on(PeerCameIn{F::kPeer});
  const ProcessId worker = f.worker({1});
  const Route reply = f.call(worker, {F::kPeer, {5}}, wire::FrameKind::kReply);
  REQUIRE(reply.verdict == Verdict::kHold);
  REQUIRE(F::find<ConnectPeer>(reply.actions) != nullptr);
  REQUIRE(F::told<cluster::PeerWanted>(reply.actions) == nullptr);  // the head has said all
}

TEST_CASE("A link that breaks is told once, whichever direction breaks first") {
  F f;
  const ProcessId caller = f.worker({1});
  f.link();
  f.on(PeerCameIn{F::kPeer});
  f.call(caller, {F::kPeer, {5}});
  const auto lost = f.on(PeerLost{F::kPeer, true, "connection reset"});
  REQUIRE(F::sent<wire::NodeLost>(lost, caller)->reason == "the link to node b broke: connection reset");
  REQUIRE(F::sent<wire::NodeLost>(f.on(PeerLost{F::kPeer, false, "session ended"}), caller) == nullptr);
  // It comes back; what is under way then is told of again.
  f.on(PeerConnected{F::kPeer});
  f.call(caller, {F::kPeer, {5}});
  REQUIRE(F::sent<wire::NodeLost>(f.on(PeerLost{F::kPeer, false, "replaced"}), caller) != nullptr);
}

TEST_CASE("A peer that comes in again, whose end was told before, may have spoken into the void meanwhile") {
  // Story: B's connection to A broke and A heard of it first. A called B; B answered on the connection that
  // it still thought good. Then B heard, and came in again: A's call had no end. (Found by the simulator.)
  F f;
  const ProcessId caller = f.worker({1});
  f.link();
  REQUIRE(F::sent<wire::NodeLost>(f.on(PeerCameIn{F::kPeer}), caller) == nullptr);  // the first time
  f.call(caller, {F::kPeer, {5}});
  REQUIRE(F::sent<wire::NodeLost>(f.on(PeerLost{F::kPeer, false, "silent"}), caller) != nullptr);
  f.call(caller, {F::kPeer, {5}});
  REQUIRE(F::sent<wire::NodeLost>(f.on(PeerCameIn{F::kPeer}), caller) != nullptr);
}

TEST_CASE("Frames that wait when the other direction breaks are refused as unavailable") {
  F f;
  f.head(cluster::ExpectPeer{F::kNode, F::info(F::kPeer)});
  f.on(PeerCameIn{F::kPeer});
  const ProcessId caller = f.worker({1});
  f.call(caller, {F::kPeer, {5}});
  const auto lost = f.on(PeerLost{F::kPeer, false, "session ended"});
  REQUIRE(F::find<RefuseHeld>(lost)->error.code == ErrorCode::kUnavailable);
}

TEST_CASE("A node's death is told, its key is revoked and its connection closed") {
  F f;
  const ProcessId caller = f.worker({1});
  f.link();
  const auto dead = f.head(cluster::NodeDead{F::kNode, F::kPeer, "it left"});
  REQUIRE(F::sent<wire::NodeDown>(dead, caller)->reason == "it left");
  REQUIRE(F::find<DisconnectPeer>(dead)->node == F::kPeer);
  REQUIRE(F::find<RevokePeer>(dead)->public_key == F::info(F::kPeer).public_key);
  REQUIRE(F::sent<wire::NodeDown>(f.head(cluster::NodeDead{F::kNode, F::kPeer, "it left"}), caller) ==
          nullptr);
}

TEST_CASE("A reply that cannot be carried is made known to the node that waits for it") {
  // Story: A reaches B, B does not reach A (a firewall): A's calls were answered into the void, for ever.
  F f;
  const ProcessId worker = f.worker({1});
  f.head(cluster::ExpectPeer{F::kNode, F::info(F::kPeer)});
  f.on(PeerCameIn{F::kPeer});
  REQUIRE(f.call(worker, {F::kPeer, {5}}, wire::FrameKind::kReply).verdict == Verdict::kHold);
  Actions last;
  for (int i = 0; i < 10; ++i) {
    f.said(worker, wire::Pulse{});
    last = f.tick();
  }
  REQUIRE(F::find<TellIncoming>(last)->node == F::kPeer);
  const Route later = f.call(worker, {F::kPeer, {5}}, wire::FrameKind::kReply);
  REQUIRE(later.verdict == Verdict::kDrop);
  REQUIRE(F::find<TellIncoming>(later.actions) != nullptr);
  const auto down = f.on(ProcessEnded{worker, "exit code 0"});
  REQUIRE(F::find<TellIncoming>(down) != nullptr);  // the death would not get there either
}

TEST_CASE("Who sent what cannot be carried is told too: what it counts as under way is gone") {
  // Was: the node that waited began anew, the process that had answered did not. Each answer into the void
  // took room of its window for good; once that was full its actor took no calls, of anybody, any more.
  F f;
  const ProcessId worker = f.worker({1});
  const ProcessId other = f.worker({2});
  f.head(cluster::ExpectPeer{F::kNode, F::info(F::kPeer)});
  f.on(PeerCameIn{F::kPeer});
  f.call(worker, {F::kPeer, {5}}, wire::FrameKind::kReply);
  Actions last;
  for (int i = 0; i < 10; ++i) {
    f.said(worker, wire::Pulse{});
    f.said(other, wire::Pulse{});
    last = f.tick();
  }
  REQUIRE(F::sent<wire::NodeLost>(last, worker) != nullptr);  // of what was held, whoever sent it
  REQUIRE(F::sent<wire::NodeLost>(last, other) != nullptr);
  REQUIRE(F::index_of<RefuseHeld>(last) < F::index_of<SendLocal>(last));  // who called hears why
  const Route reply = f.call(worker, {F::kPeer, {5}}, wire::FrameKind::kReply);
  REQUIRE(reply.verdict == Verdict::kDrop);
  REQUIRE(F::sent<wire::NodeLost>(reply.actions, worker) != nullptr);
  REQUIRE(F::sent<wire::NodeLost>(reply.actions, worker)->reason ==
          "no connection to node b at 10.0.0.2:1 within 10 s");
  REQUIRE(F::sent<wire::NodeLost>(reply.actions, other) == nullptr);
  const Route call = f.call(worker, {F::kPeer, {5}});  // its refusal says all
  REQUIRE(F::sent<wire::NodeLost>(call.actions, worker) == nullptr);
}

TEST_CASE("A full link: who waits is answered, what must arrive is kept, and a stuck receiver is cut off") {
  wire::FrameHeader call;
  call.kind = wire::FrameKind::kCall;
  wire::FrameHeader reply;
  reply.kind = wire::FrameKind::kReply;
  REQUIRE(when_full(call, 0, 1000) == WhenFull::kRefuse);
  call.flags = wire::kFlagOneWay;
  REQUIRE(when_full(call, 0, 1000) == WhenFull::kKeep);
  REQUIRE(when_full(reply, 999, 1000) == WhenFull::kKeep);
  REQUIRE(when_full(reply, 1000, 1000) == WhenFull::kClose);

  F f;
  const ProcessId worker = f.worker({1});
  REQUIRE(F::find<KillProcess>(f.on(LocalStuck{worker, 1000}))->reason ==
          "it did not read 1000 bytes of messages");
  const ProcessId other = f.worker({2});
  f.link();
  const auto stuck = f.on(PeerStuck{F::kPeer, 1000});
  REQUIRE(F::sent<wire::NodeLost>(stuck, other) != nullptr);
  REQUIRE(F::index_of<DisconnectPeer>(stuck) < F::index_of<ConnectPeer>(stuck));
}

TEST_CASE("A one-way call to a process that is dead is told to its sender, which came after the death") {
  // Was: it was dropped, and its sender, which had not heard of the death, held it for delivered.
  F f;
  const ProcessId dead = f.worker({1});
  f.on(ProcessEnded{dead, "exit code 3"});
  const ProcessId late = f.worker({2});
  f.link();
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.flags = wire::kFlagOneWay;
  header.to = {F::kNode, dead};
  header.job = F::kJob;
  header.from = {F::kNode, late};
  const auto here = f.machine.route({F::kNode, late}, header, 100, f.now);
  REQUIRE(here.verdict == Verdict::kDrop);
  REQUIRE(F::sent<wire::ProcessDown>(here.actions, late)->reason == "exit code 3");
  header.from = {F::kPeer, {9}};
  const auto there = f.machine.route({F::kPeer, {}}, header, 100, f.now);
  REQUIRE(F::sent_peer<wire::ProcessDown>(there.actions)->process == ProcessAddress{F::kNode, dead});
  header.flags = 0;
  REQUIRE(f.machine.route({F::kPeer, {}}, header, 100, f.now).actions.empty());  // it gets an answer
}

TEST_CASE("A node tells of its own processes alone") {
  F f;
  const ProcessId worker = f.worker({1});
  REQUIRE(F::sent<wire::ProcessDown>(f.peer_said(wire::ProcessDown{{F::kPeer, {5}}, "x"}), worker) !=
          nullptr);
  REQUIRE(F::sent<wire::ProcessDown>(f.peer_said(wire::ProcessDown{{{0xc}, {5}}, "x"}), worker) == nullptr);
  REQUIRE(F::sent<wire::ProcessDown>(f.peer_said(wire::ProcessDown{{F::kNode, worker}, "x"}), worker) ==
          nullptr);
}

TEST_CASE("Lines of a worker on another node reach their driver here") {
  F f;
  const ProcessId driver = f.driver();
  const auto output = f.peer_said(wire::Output{"trainer 0", false, "line\n"}, F::kPeer, {}, driver);
  REQUIRE(F::sent<wire::Output>(output, driver)->text == "line\n");
}
