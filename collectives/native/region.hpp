/// The shared region of a native group on one machine, and the view of it that a rank works with.
///
///   0            abort word (runtime/core/abort_word.hpp), with the generation's stamp
///   256          geometry stamp: a hash of layout version, world size, local ranks and data bytes
///   320          the cores that the ranks may run on, a bit each
///   448          how many the machine has
///   452          how many their CPU quotas give; 0: no quota
///   4096         one page of RankCell a local rank, in rank order
///   ...          staging: kStages chunks of kChunkBytes a local rank, each with a page behind it
///   ...          a ring of bytes for each pair of local ranks and direction: sends and receives
///   ...          between hosts: a GateCell a connection of this host, and for each host kLandings places of
///                landing_bytes for what comes from there
///   ...          data: data_bytes (rounded up to pages) a local rank; reduction trees are allocated here
///
/// The region is zeroed when made and may be sparse: what a group uses is populated when it starts to use it.
/// There is no lock. Each word has one writer, the rank whose cell it is (but for `*_sleepers`).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/native/ring.hpp"
#include "collectives/op.hpp"
#include "runtime/core/abort_word.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kChunkBytes = 256 * 1024;  ///< a chunk of a private buffer on its way through
inline constexpr std::size_t kStageBytes = kChunkBytes + kPage;  ///< it begins anywhere in a line
inline constexpr unsigned kStages = 4;                           ///< chunks a rank may have on the way
inline constexpr unsigned kMaxInFlight = 64;                     ///< published calls of a rank
/// Operations launched and not yet complete: others may be two stages' rounds behind and look at their calls.
inline constexpr unsigned kMaxLaunched = kMaxInFlight - 3 * kStages;

/// Where the input of a rank lies: in its data, or outside of the region. What is outside goes through
/// stages, in which it begins as far behind a line's begin as in its owner's memory: a copy to another place
/// in the lines takes up to 1.6 times as long where two cores share them.
class Place {
 public:
  constexpr Place() = default;
  explicit constexpr Place(std::uint64_t bits) : bits_(bits) {}
  static constexpr Place in_data(std::uint64_t offset) { return Place(offset + 1); }
  static Place outside(const void* at) {
    return Place(kOutside | (reinterpret_cast<std::uintptr_t>(at) % kCacheLine));
  }

  constexpr bool is_in_data() const { return bits_ != 0 && bits_ < kOutside; }
  /// REQUIRES: is_in_data().
  constexpr std::uint64_t offset() const { return bits_ - 1; }
  /// Of what is outside, in bytes: less than a line, whoever wrote the bits.
  constexpr std::size_t shift() const { return bits_ < kOutside ? 0 : bits_ % kCacheLine; }
  constexpr std::uint64_t bits() const { return bits_; }
  bool operator==(const Place&) const = default;

 private:
  static constexpr std::uint64_t kOutside = std::uint64_t{1} << 63;
  std::uint64_t bits_ = 0;  ///< 0: outside, at a line's begin
};

/// A call in shared memory, with its Place. Whole once the rank has arrived in the operation's first round.
/// Ranks compare these before they touch each other's data, so that different calls are an error that names
/// both, and not a wrong number.
struct PublishedOp {
  std::array<std::atomic<std::uint64_t>, kOpWords> words;
  std::atomic<std::uint64_t> place;
};
static_assert(sizeof(PublishedOp) == 32);

/// What one rank tells the others. Rounds number the pieces in which all operations of a group are done; see
/// rounds.hpp.
struct RankCell {
  Progress arrived;  ///< rounds for which this rank's input can be read
  Progress reduced;  ///< rounds for which this rank has summed its slice and stored it to all
  /// Rounds of which it has stored the sums that come over its connections to its host, and sent those that
  /// go.
  Progress delivered;
  alignas(kCacheLine) std::atomic<std::uint32_t> left;  ///< 1: the rank destroyed its group
  /// A bit a local rank with which this one has messages: their rings are in use. Some share one among more.
  std::array<std::atomic<std::uint64_t>, 16> talks_to;
  alignas(kCacheLine) std::array<PublishedOp, kMaxInFlight> calls;  ///< by the order of launch
};
static_assert(sizeof(RankCell) <= kPage);
static_assert(2 * kStages <= std::tuple_size_v<decltype(Progress::calls)>, "who is ahead keeps its calls");

/// What a gateway (host_layout.hpp) tells the ranks of its host about one connection.
struct GateCell {
  Progress landed;  ///< rounds of which what comes over this connection lies in its landing
  /// The last call of which the other host said that it stalls there, and which of its ranks (bits, by their
  /// order on that host; the first 64) have not called it. Written in this order, with the number behind.
  std::atomic<std::uint64_t> missing_there;
  std::atomic<std::uint32_t> stalls_at;
};

/// What hosts send each other before they hear from each other again, in rounds.
inline constexpr std::uint32_t kLandings = 8;

/// The most that the ranks of one host send those of another in a round, of as many hosts with at most
/// `most_members` ranks each: so that what has landed of all takes 32 MiB of a host, or little with many
/// ranks.
std::size_t landing_bytes(int hosts, std::size_t most_members);

/// What the region is cut up by. The same on every local rank.
struct Geometry {
  int world_size = 1;
  std::vector<int> local_ranks;  ///< ascending
  std::size_t data_bytes = 0;    ///< a rank
  int hosts = 1;
  std::size_t most_members = 1;  ///< ranks of a host
};

/// Bytes of one ring among `locals` local ranks: 128 KiB, or so few that all rings together have 2 MiB, but
/// no less than 4 KiB. A power of two.
std::size_t ring_bytes(std::size_t locals);

/// Bytes that a region for `geometry` has.
std::size_t region_bytes(const Geometry& geometry);

/// The core that this thread runs on, + 1; 0: not known.
std::uint32_t core_here();

/// A mapped region. Indices are positions among the local ranks.
class Region {
 public:
  /// Checks size, generation and geometry. Errors: kRefused for another generation or geometry, kLimit for a
  /// region that is too small.
  static Result<Region> attach(std::shared_ptr<SharedMemory> memory, const Geometry& geometry,
                               Generation generation);

  std::byte* abort_word() const { return base_; }
  /// The number of the file that it lies in: another for each region that is alive.
  std::uint64_t file() const { return file_; }
  /// Adds those that this thread may run on, and its CPU quota.
  void add_cores() const;
  /// How many the ranks that have attached may run on together, but no more than the least quota of any;
  /// those past 1024 are not counted.
  std::size_t cores() const;
  /// Those of the machine, as the rank counted that attached first: the same for all.
  std::uint32_t machine_cores() const;
  RankCell& cell(std::size_t local) const {
    return *reinterpret_cast<RankCell*>(base_ + (local + 1) * kPage);
  }
  std::byte* stage(std::size_t local, std::uint32_t round) const {
    return staging_ + (local * kStages + round % kStages) * kStageBytes;
  }
  /// What local rank `from` writes to local rank `to`. REQUIRES: from != to.
  RingHead& ring_head(std::size_t from, std::size_t to) const;
  Ring ring(std::size_t from, std::size_t to) const;
  /// Of the connection of this lane with `host`. REQUIRES: there are several hosts.
  GateCell& gate(int host, std::uint32_t lane) const;
  /// Where what comes from `host` in a round lies.
  std::byte* landing(int host, std::uint32_t round) const {
    return landings_ + (static_cast<std::size_t>(host) * kLandings + round % kLandings) * landing_bytes_;
  }
  std::size_t landing_bytes() const { return landing_bytes_; }
  std::byte* data(std::size_t local) const { return data_ + local * data_stride_; }
  std::size_t data_bytes() const { return data_stride_; }
  std::size_t locals() const { return locals_; }

  /// Whether [at, at + bytes) lies in the data of local rank `local`.
  bool holds(std::size_t local, const void* at, std::size_t bytes) const;

  /// Makes the pages of [at, at + bytes) present and writable in this process, so that no step pays for a
  /// page fault, and a machine out of memory is an error here.
  Result<void> populate(std::byte* at, std::size_t bytes) const;
  Result<void> populate_staging() const;
  /// The rings between two local ranks, in both directions.
  Result<void> populate_rings(std::size_t a, std::size_t b) const;

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::uint64_t file_ = 0;
  std::byte* base_ = nullptr;
  std::byte* staging_ = nullptr;
  std::byte* rings_ = nullptr;
  std::byte* gates_ = nullptr;
  std::byte* landings_ = nullptr;
  std::size_t landing_bytes_ = 0;
  std::uint32_t lanes_ = 1;  ///< cells a host
  std::byte* data_ = nullptr;
  std::size_t data_stride_ = 0;
  std::size_t locals_ = 0;
};

}  // namespace troupe::collectives
