/// How a copy comes over direct connections from its owner: whether it may, which connection brings which
/// part, and when one is given up. Pure.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"
#include "runtime/objects/object_name.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::objects {

/// Smaller objects come over the links: two or three messages are there before a connection is.
inline constexpr std::uint64_t kLeastDirectBytes = std::uint64_t{1} << 20;

/// Where a process gives what it owns, and the key that lets in.
struct DirectAddress {
  std::string address;  ///< "host:port"; empty: it has none
  wire::Bytes key;      ///< 32 bytes
};

/// Which owners are reached directly. Not thread-safe.
class DirectOwners {
 public:
  enum class Way {
    kDirect,  ///< through `at`
    kAsk,     ///< its owner is asked for its address first; then said()
    kLinks,
  };
  struct Choice {
    Way way = Way::kLinks;
    DirectAddress at{};
    std::string why;
  };
  /// How an object of so many bytes comes here.
  Choice choose(ProcessAddress owner, std::uint64_t bytes, Instant now) const;
  /// What the owner answered; nothing: that it has none, or no answer.
  void said(ProcessAddress owner, std::optional<DirectAddress> address, Instant now);
  /// How a connection to it ended. One that was not made, or broke: the owner's objects come over the links
  /// for kBackoff. What it has on disk, or no more, says nothing of connections.
  void ended(ProcessAddress owner, const Result<void>& how, Instant now);
  void forget(const std::function<bool(ProcessAddress)>& is_down) {
    std::erase_if(owners_, [&](const auto& one) { return is_down(one.first); });
  }
  std::size_t size() const { return owners_.size(); }

  static constexpr Duration kBackoff = std::chrono::seconds(30);
  static constexpr std::size_t kMost = 4096;

 private:
  struct Owner {
    std::optional<DirectAddress> address;
    Instant back_off_until{0};
  };
  void failed(ProcessAddress owner, Instant now);
  void note(ProcessAddress owner, Owner what);
  std::map<ProcessAddress, Owner> owners_;
};

/// A part of an object that one connection brings.
struct Part {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Part&) const = default;
};
/// All of the object, in order: as few parts as are worth a connection each, up to `most`, in whole
/// pages.
std::vector<Part> split(std::uint64_t bytes, std::size_t most);
/// Why the owner of an object of `size` bytes gives no such part of it; empty: it does.
std::string why_not_given(const Part& wanted, std::uint64_t size);

/// Of one connection: when it has taken too long. Not thread-safe.
class TransferDeadline {
 public:
  struct Limits {
    Duration silence = std::chrono::seconds(20);  ///< of the other end
    Duration most = std::chrono::seconds(60);  ///< for all of it, and a second more for each kSlowest bytes
  };
  TransferDeadline(std::uint64_t bytes, Instant now, Limits limits) : limits_(limits), last_(now) {
    until_ = now + limits.most + std::chrono::seconds(bytes / kSlowest);
  }
  void moved(Instant now) { last_ = now; }
  /// Until when the other end may be silent now.
  Instant until() const { return std::min(until_, last_ + limits_.silence); }
  /// Errors: kTimeout.
  Result<void> check(Instant now) const;

  /// Bytes a second.
  static constexpr std::uint64_t kSlowest = std::uint64_t{1} << 20;

 private:
  Limits limits_;
  Instant last_;
  Instant until_{0};
};

}  // namespace troupe::objects
