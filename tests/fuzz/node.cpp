// A node, told things by a process that is up to no good.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "runtime/node/node_machine.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

using namespace node;

constexpr NodeId kNode{0xa};
constexpr NodeId kPeer{0xb};
constexpr JobId kJob{7};
constexpr JobId kVictimsJob{8};

Self this_node() {
  Self self;
  self.info = {kNode, "a", "10.0.0.1:1", std::string(40, 'a'), 4 * cluster::kCpu, false};
  self.host = "10.0.0.1";
  self.package = "own";
  return self;
}

/// A node with a worker of each of two jobs, and a peer. The second job's worker is the victim: nothing that
/// the first says may end it or take its memory.
class Scene {
 public:
  Scene() : machine_(this_node(), ids_) {
    on(HeadConnected{});
    on(HeadSaid{cluster::NodeAccepted{kNode}});
    sender_ = worker({1}, kJob);
    victim_ = worker({2}, kVictimsJob);
    for (const auto& action : on(LocalSaid{victim_, wire::RegionAsk{1, "node", 4096, "rank 0", true}, 0})) {
      if (const auto* region = std::get_if<MakeRegion>(&action)) region_ = region->region;
    }
    check(bool(region_), "the victim has a region");
  }

  /// A frame of the sender, as the shell of a node brings it to the machine. True: it was allowed to say
  /// that.
  bool says(const wire::FrameHeader& header, wire::ByteView body, std::size_t fds) {
    now_ += std::chrono::milliseconds(1);
    Route route = machine_.route({kNode, sender_}, header, wire::kHeaderBytes + body.size(), now_);
    look_at(route.actions);
    if (route.verdict == node::Verdict::kBreach) {
      on(LocalBroke{sender_, route.error.why});
      return false;
    }
    if (route.verdict != node::Verdict::kToNode) return true;
    auto message = wire::decode_control(header, body);
    if (!message) {
      on(LocalBroke{sender_, message.error().why});
      return false;
    }
    on(LocalSaid{sender_, *std::move(message), fds});
    return true;
  }
  void tick() {
    now_ += std::chrono::seconds(1);
    on(LocalSaid{victim_, wire::Pulse{}, 0});  // it is alive, so no timeout ends it
    on(Tick{});
  }

  ProcessId sender() const { return sender_; }
  ProcessId victim() const { return victim_; }

 private:
  ProcessId worker(ActorId actor, JobId job) {
    const auto bytes = wire::encode(wire::ActorPayload{5, "trainer", {kNode, {9}}, "", {}});
    const std::string payload(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const cluster::ActorSpec spec{job, "T", "", payload, {cluster::kCpu, true, {}}};
    ProcessId process;
    for (const auto& action : on(HeadSaid{cluster::StartActor{kNode, actor, spec, ""}})) {
      if (const auto* start = std::get_if<StartWorker>(&action)) process = start->process;
    }
    check(bool(process), "a worker is started");
    on(LocalSaid{process, wire::Hello{}, 1});
    on(LocalSaid{process, wire::ActorUp{actor}, 0});
    return process;
  }
  /// What a shell does at once is told at once.
  Actions on(const NodeEvent& event) {
    Actions all = machine_.on(event, now_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      Actions more;
      if (const auto* drain = std::get_if<DrainOutput>(&all[i])) {
        more = machine_.on(OutputDrained{drain->process, ""}, now_);
      } else if (const auto* region = std::get_if<MakeRegion>(&all[i])) {
        more = machine_.on(RegionMade{region->region, std::nullopt}, now_);
      } else if (const auto* ring = std::get_if<MakeRing>(&all[i])) {
        more = machine_.on(RingMade{ring->first, ring->second, ring->request, std::nullopt}, now_);
      }
      all.insert(all.end(), more.begin(), more.end());
    }
    look_at(all);
    return all;
  }
  void look_at(const Actions& actions) const {
    for (const auto& action : actions) {
      const auto* kill = std::get_if<KillProcess>(&action);
      check(kill == nullptr || !victim_ || kill->process != victim_,
            "a process of one job cannot end another job's");
      const auto* drop = std::get_if<DropRegion>(&action);
      check(drop == nullptr || !region_ || drop->region != region_,
            "a process of one job cannot drop another job's region");
      if (const auto* abort = std::get_if<AbortRegions>(&action)) {
        check(std::find(abort->regions.begin(), abort->regions.end(), region_) == abort->regions.end(),
              "a process of one job cannot abort another job's group");
      }
    }
  }

  SeededRandom ids_{1};
  Instant now_{std::chrono::seconds(1)};
  NodeMachine machine_;
  ProcessId sender_;
  ProcessId victim_;
  RegionId region_;
};

}  // namespace

/// Frames, one after the other: six bytes of header (kind or 255 for a tick, flags and descriptors, to, from,
/// job, number), the length of the body in two bytes, the body.
bool node_machine(std::span<const std::byte> bytes) {
  Scene scene;
  const ProcessAddress places[] = {{kNode, {}},
                                   {kNode, scene.sender()},
                                   {kNode, scene.victim()},
                                   {kPeer, {}},
                                   {kPeer, {5}},
                                   {{0xc}, {6}},
                                   {kNode, {12345}},
                                   {{}, {}}};
  const JobId jobs[] = {kJob, kVictimsJob, {}, {99}};
  bool said = false;
  while (bytes.size() >= 8) {
    const auto head = take(bytes, 6);
    const auto byte = [&head](std::size_t i) { return static_cast<unsigned>(head[i]); };
    if (byte(0) == 255) {
      scene.tick();
      continue;
    }
    wire::FrameHeader header;
    header.kind = static_cast<wire::FrameKind>(1 + byte(0) % static_cast<unsigned>(wire::kLastFrameKind));
    header.flags = static_cast<std::uint8_t>(byte(1) & 7);
    header.to = places[byte(2) % std::size(places)];
    header.from = places[byte(3) % std::size(places)];
    header.job = jobs[byte(4) % std::size(jobs)];
    header.id = byte(5);
    said = scene.says(header, take(bytes, take_u16(bytes)), byte(1) >> 3 & 3) || said;
  }
  return said;
}

}  // namespace troupe::fuzz
