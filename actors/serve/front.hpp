/// What HTTP asks of a deployment: of the program's own, or of what a proxy on another node knows of it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "actors/data/tensor.hpp"
#include "actors/serve/deployment_types.hpp"
#include "actors/serve/replica.hpp"

namespace troupe::serve {

/// What came of a request.
struct Reply {
  data::Tensor outputs;
  VersionId version = 0;  ///< of the weights that computed them
  std::optional<Fail> failed;
};
using ReplyTo = std::function<void(Reply)>;

/// The status that a failure is told with.
int http_status(Failure failure);
/// The kind of error that a program is told it with.
ErrorCode error_code(Failure failure);

/// Thread-safe.
class Front {
 public:
  virtual ~Front() = default;

  virtual const std::string& name() const = 0;
  virtual const ReplicaSetup& setup() const = 0;
  virtual std::size_t max_request_rows() const = 0;
  /// Takes requests, and a replica is there.
  virtual bool is_ready() const = 0;
  /// Of the weights that answer.
  virtual VersionId version() const = 0;
  /// What its net gives for a sample, as the first replica that was ready said; its pid means nothing.
  virtual std::optional<ReplicaInfo> output() const = 0;
  /// Sets the gauges.
  virtual void measure() = 0;

  virtual RequestId next_request() = 0;
  /// `reply` is called once, in any thread, and not at all after leave(). REQUIRES: `inputs` are [rows, ...]
  /// of the setup's dtype and shape; an id of next_request().
  virtual void submit(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) = 0;
  virtual void leave(RequestId id) = 0;
};

/// Why samples of this type and shape cannot be asked for; none: they can.
std::optional<std::string> refusal(const Front& front, data::DType dtype, const data::Shape& shape);

}  // namespace troupe::serve
