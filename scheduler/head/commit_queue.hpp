/// What the head says, in order, each held until everything that was persisted before it is durable.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/storage.hpp"
#include "runtime/wire/cluster.hpp"

namespace troupe {

/// An answer to one who is no node, as a whole frame.
struct HeadReply {
  std::string to;  ///< the peer's name
  Bytes frame;
  /// Of the question, which is told at once when the store fails; 0: it waits.
  std::uint64_t request = 0;
  std::string submission{};  ///< that it made; empty: none
};
/// Nothing that is sent: that state of a submission is durable (none: that it is gone), and may be shown.
struct SubmissionShown {
  std::string id;
  std::optional<cluster::SubmissionRecord> record;
};
using HeadMessage = std::variant<cluster::ClusterAction, HeadReply, SubmissionShown>;

/// Group commit, as a pure machine: while one batch is written, all that is persisted meanwhile gathers in
/// the next one. A write that fails is done again until it succeeds, with what has changed since; nothing
/// behind it is let go before.
///
/// Invariants: messages leave in the order in which they came; one batch is under way at most; a message
/// leaves when the batch that was open when it came, if anything was in it, is durable. A batch holds the
/// last change of each key, so that while the store fails it grows with the records and not with time.
class CommitQueue {
 public:
  /// Takes up Persist and Erase for the open batch; holds the others.
  void add(std::vector<cluster::ClusterAction> actions);
  void add(const StoreBatch& changes);
  void add(HeadReply reply) { hold(std::move(reply)); }
  void add(SubmissionShown shown) { hold(std::move(shown)); }
  /// While the store fails: what is held that ends actors or jobs, once. It may be obeyed before it is
  /// durable, since it is said again then, and a head that has forgotten it hears of the same ends anew.
  std::vector<cluster::ClusterAction> take_early_ends();
  /// Takes out the replies whose questions are told of a failure.
  std::vector<HeadReply> take_failed_replies();
  /// Does not say that a submission starts: it was withdrawn.
  void unsay_start(const std::string& submission);

  /// The batch to write now, unless one is under way or the next try is not due.
  std::shared_ptr<const StoreBatch> next_write(Instant now);
  /// How the batch under way went.
  void written(const Result<void>& how, Instant now);
  /// What may be sent now.
  std::vector<HeadMessage> take_ready();

  /// Messages that wait for a batch.
  std::size_t held() const { return held_.size(); }
  /// Why the last write failed; none once one has succeeded.
  const std::optional<ErrorInfo>& failure() const { return failure_; }
  /// Batches that are durable, and changes in them.
  std::uint64_t batches() const { return durable_; }
  std::uint64_t changes() const { return changes_; }

 private:
  struct Held {
    std::uint64_t batch = 0;  ///< that must be durable first
    HeadMessage message;
  };
  void hold(HeadMessage message);
  void note_end(std::uint64_t batch, const cluster::ClusterAction& action);
  void take_back();

  std::map<std::string, std::optional<Bytes>>
      open_;                                     ///< batch number durable_ + 1, or + 2 if one is under way
  std::shared_ptr<const StoreBatch> under_way_;  ///< batch number durable_ + 1
  bool is_written_ = false;                      ///< under_way_ is with the store now
  std::deque<Held> held_;
  std::deque<std::pair<std::uint64_t, cluster::ClusterAction>>
      ends_;  ///< of held_; batch, as it is said early
  std::uint64_t durable_ = 0;
  std::uint64_t changes_ = 0;
  std::optional<ErrorInfo> failure_;
  Duration backoff_{};
  Instant next_try_{};
};

}  // namespace troupe
