/// The tensors of the requests that have no answer yet, the batches made of them, and what is counted of
/// both.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/serve/front.hpp"
#include "runtime/http/metrics.hpp"

namespace troupe::serve {

/// Its call failed since the replica is gone or cannot be reached.
bool is_lost(const ErrorInfo& error);

/// troupe_serve_requests_total. `deployment`: empty for requests of none.
std::shared_ptr<http::Counter> requests_counter(http::Registry& of, const std::string& deployment,
                                                int status);

/// Not thread-safe, but for drop_metrics.
class RequestBook {
 public:
  RequestBook(ReplicaSetup setup, std::string name, http::Registry& metrics);
  ~RequestBook();

  void add(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply);
  /// Its client is gone. False: it has ended already.
  bool leave(RequestId id);
  /// `clock_offset`: the replica's clock minus ours. `proxy`: who sends it.
  BatchInput batch_of(const SendBatch& action, Duration clock_offset, ProxyId proxy);
  /// What the machine is told of a batch; the outputs wait here for deliver(), until the next batch.
  /// REQUIRES: a result that is not lost.
  BatchDone take(const SendBatch& sent, VersionId version, const std::vector<std::int64_t>& rows,
                 Result<BatchOutput> result);
  void deliver(const Deliver& action);
  void fail(const Fail& action);
  void forget_outputs() { returned_.clear(); }
  /// Its series go: what still comes, such as a late answer, counts nowhere.
  void drop_metrics();

 private:
  struct Waiting {
    data::Tensor inputs;
    Instant deadline{};
    Instant arrived{};
    ReplyTo reply;
    bool sent = false;
  };
  struct Metrics;

  const ReplicaSetup setup_;
  const std::string name_;
  const MonotonicClock clock_;
  std::unique_ptr<Metrics> metrics_;
  std::unordered_map<RequestId, Waiting> requests_;
  std::vector<Reply> returned_;  ///< to each request of the batch that the machine is told of
};

}  // namespace troupe::serve
