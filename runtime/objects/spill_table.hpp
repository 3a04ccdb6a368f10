/// Which of a process's own objects leave memory for disk, and which come back. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

namespace troupe::objects {

/// Not thread-safe. Of the objects in shared memory alone.
///
///     in memory  --choose-->  leaving  --left-->  on disk  --want-->  coming  --came-->  in memory
///         ^------stays----------'                    ^----did_not_come---'
///
/// An object that came back keeps its place on disk: to leave again costs no write.
class SpillTable {
 public:
  struct Spill {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;  ///< that come free
    bool write = true;        ///< it is not on disk yet
  };
  enum class Want {
    kHere,   ///< in memory, or not known here
    kComes,  ///< it will be, or its owner is told that it cannot
    kRead,   ///< the same, and it is to be read now
  };
  /// Nobody looks at it.
  using MayLeave = std::function<bool(std::uint64_t number)>;

  void add(std::uint64_t number, std::uint64_t bytes);
  void erase(std::uint64_t number);

  /// What leaves so that `wanted` bytes come free: the least recently used first. A little is not worth a
  /// write: up to 64 MiB leave at a time, but no more than a quarter of what is in memory for that.
  std::vector<Spill> choose(std::uint64_t wanted, const MayLeave& may_leave);
  void stays(std::uint64_t number);
  /// True: somebody wants it meanwhile, and it is to be read now.
  bool left(std::uint64_t number);

  /// Somebody uses it now.
  Want want(std::uint64_t number);
  /// `bytes` would come free of it now.
  void came(std::uint64_t number, std::uint64_t bytes);
  void did_not_come(std::uint64_t number);

  std::uint64_t bytes_in_memory() const { return in_memory_; }
  std::size_t on_disk() const;
  std::size_t size() const { return objects_.size(); }

 private:
  enum class State { kMemory, kLeaving, kDisk, kComing };
  struct Object {
    std::uint64_t bytes = 0;
    State state = State::kMemory;
    bool written = false;
    bool wanted = false;                      ///< while it leaves
    std::list<std::uint64_t>::iterator line;  ///< in memory alone
  };
  using Objects = std::unordered_map<std::uint64_t, Object>;
  void into_memory(Objects::iterator at);
  /// Null: it was erased meanwhile.
  Object* in_state(std::uint64_t number, State state);

  Objects objects_;
  std::list<std::uint64_t> line_;  ///< in memory, the least recently used first
  std::uint64_t in_memory_ = 0;    ///< Invariant: the bytes of those in line_
};

}  // namespace troupe::objects
