/// What processes say to each other about objects, and the errors that this ends in.
#pragma once

#include "runtime/host/call_state.hpp"
#include "runtime/objects/object_name.hpp"
#include "runtime/objects/owner_table.hpp"
#include "runtime/wire/codec.hpp"
#include "runtime/wire/region_answer.hpp"

namespace troupe::objects {

// Operations of a process's actor 0.
inline constexpr std::uint64_t kLocate = 1;
inline constexpr std::uint64_t kPart = 2;
inline constexpr std::uint64_t kCopied = 3;
inline constexpr std::uint64_t kAddBorrower = 4;
inline constexpr std::uint64_t kGiveBack = 5;
inline constexpr std::uint64_t kFreed = 6;
inline constexpr std::uint64_t kMakeRoom = 7;
inline constexpr std::uint64_t kKeep = 8;
inline constexpr std::uint64_t kDirectAddress = 9;  ///< the answer is a DirectAddress
/// To who makes copies of the asker's objects (MakingTell): the answer has those that it does not make.
inline constexpr std::uint64_t kStillMakes = 10;
/// To a caller: answered once it holds what that call's answer refers to, or does not want that.
inline constexpr std::uint64_t kAnswerHeld = 16;

struct LocateAsk {
  std::uint64_t number = 0;
  bool again = false;
  // Of one that a task computes:
  bool waits = true;    ///< until it is computed; else that is an error
  ObjectName unread{};  ///< the object that has its value, as the owner said, and that is lost
  std::string why{};
};
struct Location {
  Where where = Where::kGone;
  std::uint64_t bytes = 0;
  std::uint64_t region = 0;  ///< on the owner's node: the number in the name of its memory
  wire::Bytes value;         ///< of a small one
  ObjectName place{};        ///< of one that is elsewhere
  std::uint64_t ticket = 0;  ///< of one to be copied: what `copied` is to say
};
struct PartAsk {
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct CopiedTell {
  std::uint64_t number = 0;
  std::uint64_t ticket = 0;
  bool ok = false;
};
struct MakingTell {
  std::vector<std::uint64_t> numbers;
};
struct NumberTell {
  std::uint64_t number = 0;
};

struct RoomAsk {
  std::uint64_t bytes = 0;
};
struct RoomAnswer {
  std::uint64_t freed = 0;
  std::string why_not_more;
  bool is_read = false;  ///< of what stayed some is read by other processes
};

/// Of a kReply: its body is not the answer, but the name of the object that holds it.
inline constexpr std::uint8_t kFlagAnswerInObject = 32;

/// What a dead process borrowed counts for this long: references that it passed on may still be on their way.
inline constexpr Duration kDeadBorrowerGrace = std::chrono::seconds(5);

/// What broke with its link is said, or asked, again after this long.
inline constexpr Duration kSaysAgain = std::chrono::milliseconds(200);

/// The name of an owner's region on its node, and of a copy on another one.
inline std::string own_region(const ProcessAddress& owner, std::uint64_t region) {
  return region_key({owner, region});
}
inline std::string copy_region(const ObjectName& name) {
  return std::string(wire::kCopyRegions) + region_key(name);
}

/// Where the object of an answer was lost: what its call failed with.
ErrorInfo answer_lost(const ObjectName& name, const ErrorInfo& why);

ErrorInfo lost(const ObjectName& name, std::string why);
/// Of the owner's process, or of its node: then the owner itself may live.
enum class OwnerDeath { kOfProcess, kOfNode };
/// By the death of its owner, rather than of its owner's disk.
ErrorInfo lost_with_owner(const ObjectName& name, const std::string& why, OwnerDeath death);
bool is_lost_with_owner(const ErrorInfo& error);
ErrorInfo freed(const ObjectName& name);
/// The origin of why a computed one has no value: it is not taken for the end of the process that says so.
inline constexpr const char* kComputes = "a task that computes an object";
/// A computed one has no value yet, or none any more, and who asks does not wait for it.
ErrorInfo not_computed_yet(const ObjectName& name);
bool is_not_computed_yet(const ErrorInfo& error);
ErrorInfo refused_question();
ErrorInfo process_ends();
/// Whether an answer says that the link broke, rather than what became of the question.
bool link_broke(const Outcome& outcome);

}  // namespace troupe::objects
