/// The head's records as bytes in its store, with the version of their layout: a newer head reads what an
/// older one wrote.
///
/// ```
/// version 1    the codec's bytes of the Record: the first is 0, 1 or 2, its kind
/// since 2      0xfe    u16 version    the codec's bytes of that version's Record
/// since 11     the same, and the XXH3 of the codec's bytes
/// ```
///
/// Who changes the layout of anything in a Record adds fields at a struct's end, raises kRecordVersion, and
/// says in records.cpp how many fields the struct had before. What older records lack keeps its default.
/// tests/scheduler/store/records_test.cpp holds the bytes of every version that was.
#pragma once

#include "runtime/core/result.hpp"
#include "runtime/wire/bytes.hpp"
#include "runtime/wire/cluster.hpp"

namespace troupe {

/// 2: submissions. 3: actors that are started again. 4: packages and priorities of submissions.
/// 5: placement groups. 6: queues, whose program a job is, groups that are gone when their actors start.
/// 7: memory, custom resources and labels. 8: detached actors, parked jobs. 9: who started
/// them, quotas of memory and custom resources. 10: the submission whose program spawned a detached actor,
/// why an actor ends, where one that restarts died, and whether it has saved a state. 11: checksums.
inline constexpr std::uint16_t kRecordVersion = 11;

wire::Bytes encode_record(const cluster::Record& record);
/// Total. Errors: kBadInput (damaged), kRefused (of a newer troupe).
Result<cluster::Record> decode_record(wire::ByteView bytes);

}  // namespace troupe
