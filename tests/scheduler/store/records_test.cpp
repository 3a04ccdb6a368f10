// Records of every version that was: a newer head reads an older store.
#include "scheduler/store/records.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <catch2/catch.hpp>

#include "runtime/core/hex.hpp"
#include "runtime/wire/codec.hpp"

using namespace troupe;
using namespace troupe::cluster;

namespace {

wire::Bytes bytes_of(const std::string& hex) {
  wire::Bytes bytes(hex.size() / 2);
  REQUIRE(from_hex(hex, bytes));
  return bytes;
}

/// Hexadecimal digits of a record, without the spaces between its fields.
std::string hex(std::string fields) {
  std::erase(fields, ' ');
  return fields;
}

/// A record as another one, but for a change.
template <class RecordType, class Change>
RecordType with(RecordType record, Change change) {
  change(record);
  return record;
}

const NodeRecord kNode{{NodeId{0x1f}, "a", "h:1", "k", 20000, false, {"0"}}, true};
const JobRecord kJob{"main", 3, JobId{7}, {NodeId{1}, ProcessId{2}}, 9, true};
const ActorRecord kActor{ActorId{0x3c},
                         {JobId{7}, "T", "n", "", {10000, true, NodeId{1}, 5000}},
                         {{NodeId{1}, ProcessId{2}}, 4},
                         NodeId{1},
                         ProcessId{5},
                         ActorState::kAlive,
                         {1}};
const SubmissionRecord kSubmission{{"id", "name", {"p", "q"}, {"A=b"}, "/f", 10000, 0, 2},
                                   SubmissionState::kRunning,
                                   5,
                                   1,
                                   NodeId{1},
                                   "n1",
                                   {},
                                   100,
                                   200,
                                   0,
                                   -1,
                                   "it runs"};

// The codec's bytes of these: those of versions 1 and 2 are the same, and later versions have more behind a
// piece. Who sees this fail has changed a layout: raise kRecordVersion, say in records.cpp what is new, and
// leave these bytes and what they are read as alone.
const std::string kNodeBytes =
    hex("00 1f00000000000000 01000000 61 03000000 683a31 01000000 6b 204e000000000000 00 01000000 01000000 "
        "30 01");
const std::string kJobBytes = hex(
    "01 04000000 6d61696e 03000000 0700000000000000 0100000000000000 0200000000000000 0900000000000000 01");
const std::string kActorHead =
    hex("02 3c00000000000000 0700000000000000 01000000 54 01000000 6e 00000000 1027000000000000 01 "
        "0100000000000000 8813000000000000");
const std::string kActorRest =  // behind its spec
    hex("0100000000000000 0200000000000000 0400000000000000 0100000000000000 0500000000000000 01 01000000 "
        "01000000");
/// Since version 3: max_restarts and max_task_retries behind the demand, incarnation and restarts at the end.
const ActorRecord kRestarted{ActorId{0x3c},
                             {JobId{7}, "T", "", "", {0, true, {}}, -1, 2},
                             {{NodeId{1}, ProcessId{2}}, 4},
                             {},
                             {},
                             ActorState::kRestarting,
                             {},
                             6,
                             5};
const std::string kRestartedBytes =
    hex("02 3c00000000000000 0700000000000000 01000000 54 00000000 00000000 0000000000000000 01 "
        "0000000000000000 0000000000000000 ffffffff 02000000 0100000000000000 0200000000000000 "
        "0400000000000000 0000000000000000 0000000000000000 04 00000000 06000000 05000000");
const std::string kSubmissionHead =
    hex("03 02000000 6964 04000000 6e616d65 02000000 01000000 70 01000000 71 01000000 03000000 413d62 "
        "02000000 2f66 1027000000000000 0000000000000000 02000000");
const std::string kSubmissionRest =  // behind its spec
    hex("02 0500000000000000 01000000 0100000000000000 02000000 6e31 00000000 6400000000000000 "
        "c800000000000000 0000000000000000 ffffffff 07000000 69742072756e73");

/// Since version 4: package, executable and priority behind the retries.
const SubmissionRecord kPackaged = with(kSubmission, [](auto& r) {
  r.spec.package = "ab";
  r.spec.executable = "c";
  r.spec.priority = -3;
});
const std::string kPackage = hex("02000000 6162 01000000 63 fdffffff");

/// Since version 5: an actor's placement group and bundle behind its GPUs, its bundle at the end; groups.
const ActorRecord kGrouped = with(kActor, [](auto& r) {
  r.spec.demand.group = GroupId{0x2a};
  r.spec.demand.bundle = 1;
  r.bundle = 1;
});
const std::string kGroupOfActor = hex("2a00000000000000 01000000");
const std::string kOneLife = "0000000000000000";  // behind the demand: no restarts, no retries
const std::string kBundleOfActor =                // at the end: incarnation, restarts, bundle
    hex("01000000 00000000 01000000");
const GroupRecord kGroup{GroupId{0x2a},
                         {JobId{7}, "g", PlacementStrategy::kStrictSpread, {{10000, 0}, {0, 5000}}},
                         {{NodeId{1}, ProcessId{2}}, 4},
                         GroupState::kWaiting,
                         3,
                         {{NodeId{}, {}}, {NodeId{1}, {1}}}};
const std::string kGroupToFirstBundle =
    hex("04 2a00000000000000 0700000000000000 01000000 67 03 02000000 1027000000000000 0000000000000000");
const std::string kSecondBundle = hex("0000000000000000 8813000000000000");
const std::string kGroupHead = kGroupToFirstBundle + kSecondBundle;
const std::string kGroupRest =  // behind its spec
    hex("0100000000000000 0200000000000000 0400000000000000 00 03000000 02000000 0000000000000000 00000000 "
        "0100000000000000 01000000 01000000");

/// Since version 6: the submission of a job at its end, a submission's queue behind its priority, whether a
/// group is for the start alone behind its bundles; queues.
const JobRecord kProgram = with(kJob, [](auto& r) { r.submission = "id"; });
const std::string kSubmissionOfJob = hex("02000000 6964");
const SubmissionRecord kQueued = with(kPackaged, [](auto& r) { r.spec.queue = "q"; });
const std::string kQueueOfSubmission = hex("01000000 71");
const GroupRecord kStartGroup = with(kGroup, [](auto& r) { r.spec.start_only = true; });
const std::string kStartOnly = "01";
const QueueRecord kQueue{"q", 40000, -1, 20000};
const std::string kQueueBytes = hex("05 01000000 71 409c000000000000 ffffffffffffffff 204e000000000000");

/// Since version 7: memory, custom resources and labels, behind a node's GPUs, an actor's bundle, a
/// submission's queue and each bundle's GPUs.
const OtherResources kOther{{{"memory", 5}, {"tpu", 10000}}, {{"z", "a"}}};
const std::string kOtherBytes =
    hex("02000000 06000000 6d656d6f7279 0500000000000000 03000000 747075 1027000000000000 01000000 01000000 "
        "7a 01000000 61");
const NodeRecord kOffering = with(kNode, [](auto& r) { r.node.other = kOther; });
const ActorRecord kAsking = with(kGrouped, [](auto& r) { r.spec.demand.other = kOther; });
const SubmissionRecord kWanting = with(kQueued, [](auto& r) { r.spec.other = kOther; });
const GroupRecord kHolding = with(kStartGroup, [](auto& r) { r.spec.bundles[0].other = kOther; });
const std::string kOfferingBytes = kNodeBytes.substr(0, kNodeBytes.size() - 2) + kOtherBytes + "01";
const std::string kHoldingHead = kGroupToFirstBundle + kOtherBytes + kSecondBundle + hex("00000000 00000000");

const std::string kActorBytes = kActorHead + kActorRest;
const std::string kGroupedBytes = kActorHead + kGroupOfActor + kOneLife + kActorRest + kBundleOfActor;
const std::string kProgramBytes = kJobBytes + kSubmissionOfJob;
const std::string kSubmissionBytes = kSubmissionHead + kSubmissionRest;
const std::string kPackagedBytes = kSubmissionHead + kPackage + kSubmissionRest;
const std::string kQueuedBytes = kSubmissionHead + kPackage + kQueueOfSubmission + kSubmissionRest;
const std::string kGroupBytes = kGroupHead + kGroupRest;
const std::string kStartGroupBytes = kGroupHead + kStartOnly + kGroupRest;
const std::string kAskingBytes =
    kActorHead + kGroupOfActor + kOtherBytes + kOneLife + kActorRest + kBundleOfActor;
const std::string kWantingBytes =
    kSubmissionHead + kPackage + kQueueOfSubmission + kOtherBytes + kSubmissionRest;
const std::string kHoldingBytes = kHoldingHead + kStartOnly + kGroupRest;

/// Since version 8: whether an actor is detached behind its retries, and whether a job is parked at its end.
const ActorRecord kDetached = with(kAsking, [](auto& r) { r.spec.detached = true; });
const JobRecord kParked = with(kProgram, [](auto& r) { r.parked = true; });
const std::string kDetachedBytes =
    kActorHead + kGroupOfActor + kOtherBytes + kOneLife + "01" + kActorRest + kBundleOfActor;
const std::string kParkedBytes = kProgramBytes + "01";

/// Since version 9: a queue's quotas of memory and custom resources at its end.
const QueueRecord kLimited{"q", 40000, -1, 20000, {{"memory", 5}, {"tpu", 10000}}};
const std::string kLimitedBytes = kQueueBytes + kOtherBytes.substr(0, kOtherBytes.size() - 8 - 10 - 10);
/// Since version 9: who started them, at the end of both.
const ActorRecord kStartedActor = with(kDetached, [](auto& r) { r.started_by = "machine/1"; });
const JobRecord kStartedJob = with(kParked, [](auto& r) { r.started_by = "machine/1"; });
const std::string kStarterBytes = hex("09000000 6d616368696e652f31");
const std::string kStartedActorBytes = kDetachedBytes + kStarterBytes;
/// Since version 10: the submission of a detached actor, why it ends and where one that restarts died, at the
/// end.
const ActorRecord kEndingActor = with(kStartedActor, [](auto& r) {
  r.submission = "sub";
  r.ends_for = "why";
  r.died_on = NodeId{2};
  r.has_saved = true;
});
const std::string kEndingActorBytes =
    kStartedActorBytes + hex("03000000 737562 03000000 776879 0200000000000000 01");
const std::string kStartedJobBytes = kParkedBytes + kStarterBytes;

}  // namespace

TEST_CASE("records of every version are read, and written as the newest") {
  struct Known {
    std::string hex;
    Record record;
    int from, to;  ///< the versions that have it so
  };
  const std::vector<Known> all{{kNodeBytes, kNode, 1, 6},
                               {kOfferingBytes, kOffering, 7, 11},
                               {kJobBytes, kJob, 1, 5},
                               {kProgramBytes, kProgram, 6, 7},
                               {kParkedBytes, kParked, 8, 8},
                               {kStartedJobBytes, kStartedJob, 9, 11},
                               {kActorBytes, kActor, 1, 2},
                               {kRestartedBytes, kRestarted, 3, 4},
                               {kGroupedBytes, kGrouped, 5, 6},
                               {kAskingBytes, kAsking, 7, 7},
                               {kDetachedBytes, kDetached, 8, 8},
                               {kStartedActorBytes, kStartedActor, 9, 9},
                               {kEndingActorBytes, kEndingActor, 10, 11},
                               {kSubmissionBytes, kSubmission, 2, 3},
                               {kPackagedBytes, kPackaged, 4, 5},
                               {kQueuedBytes, kQueued, 6, 6},
                               {kHoldingBytes, kHolding, 7, 11},
                               {kGroupBytes, kGroup, 5, 5},
                               {kStartGroupBytes, kStartGroup, 6, 6},
                               {kWantingBytes, kWanting, 7, 11},
                               {kQueueBytes, kQueue, 6, 8},
                               {kLimitedBytes, kLimited, 9, 11}};
  for (const auto& [hex, record, from, to] : all) {
    for (int version = from; version <= to; ++version) {
      CAPTURE(version, hex);
      wire::Bytes bytes = bytes_of("fe0000" + hex);
      bytes[1] = static_cast<std::byte>(version);
      if (version == 1) bytes = bytes_of(hex);  // it had no version
      if (version < 11) {
        CHECK(decode_record(bytes).value() == record);
        continue;
      }
      const wire::Bytes sum = wire::encode(std::uint64_t{XXH3_64bits(bytes.data() + 3, bytes.size() - 3)});
      bytes.insert(bytes.end(), sum.begin(), sum.end());
      CHECK(decode_record(bytes).value() == record);
      CHECK(encode_record(record) == bytes);
      // Was: a head ended with map::at, or without a job, for a bit of its store.
      for (std::byte& one : bytes) {
        one ^= std::byte{4};
        CHECK_FALSE(decode_record(bytes));
        one ^= std::byte{4};
      }
    }
  }
}

TEST_CASE("a count of bundles that the bytes do not hold is damage") {
  const wire::Bytes bytes = bytes_of("fe0600" + kGroupHead.substr(0, 46) + "ffffffff");
  const auto damaged = decode_record(bytes);
  REQUIRE_FALSE(damaged);
  CHECK(damaged.error().code == ErrorCode::kBadInput);
}

TEST_CASE("a record of a newer troupe is refused with both versions, a damaged one as that") {
  const auto newer = decode_record(bytes_of("fe0c00" + kJobBytes));
  REQUIRE_FALSE(newer);
  CHECK(newer.error().code == ErrorCode::kRefused);
  CHECK(newer.error().why == "it has version 12, and this troupe knows 11");
  for (const char* hex : {"", "fe", "fe0b", "fe0b00", "fe0a00", "03", "7f00"}) {
    const auto damaged = decode_record(bytes_of(hex));
    REQUIRE_FALSE(damaged);
    CHECK(damaged.error().code == ErrorCode::kBadInput);
  }
}
