/// A replica: an actor with a process of its own that holds a trained net and computes batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/data/tensor.hpp"
#include "actors/serve/credits.hpp"
#include "actors/serve/deployment_types.hpp"
#include "actors/serve/handle.hpp"
#include "runtime/wire/codec.hpp"

namespace at {
class Tensor;
}

namespace troupe::serve {

/// A batch on its way to a replica: the rows of its requests one after the other.
struct BatchInput {
  data::DType dtype = data::DType::kFloat32;
  data::Shape row_shape;
  std::vector<std::int64_t> rows;       ///< of each request
  std::vector<std::int64_t> deadlines;  ///< of each, in nanoseconds of the replica's clock
  wire::Bytes values;
  std::uint64_t proxy = 0;  ///< who sent it; 0: the program
};

/// What came of it: the rows of the requests that were answered, one after the other.
struct BatchOutput {
  std::vector<Verdict> verdicts;
  data::DType dtype = data::DType::kFloat32;
  data::Shape row_shape;
  wire::Bytes values;
  std::int64_t computed_ns = 0;
  std::uint32_t credits = 0;  ///< batches that this proxy may have here at a time
  std::int64_t began_at = 0;  ///< Replica::clock(), when it began with it
};

/// What it was started with.
struct ReplicaSetup {
  std::int64_t max_batch = 64;
  data::DType dtype = data::DType::kFloat32;  ///< of an input
  data::Shape row_shape;
  int threads = 1;
};

struct ReplicaInfo {
  int pid = 0;
  data::DType dtype = data::DType::kFloat32;  ///< of an output
  data::Shape row_shape;
};

class Replica {
 public:
  explicit Replica(const ReplicaSetup& setup, ReplicaCalls calls = {});
  virtual ~Replica() = default;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  void add_weights(const wire::Bytes& piece);
  /// Loads what was added, and computes zeros once alone and once as a full batch. Throws what the net
  /// throws; Unavailable where another deployment that it asks has no answer now.
  ReplicaInfo warm_up();
  /// Leaves out requests whose deadline has come. Where the net throws for several requests, each is computed
  /// by itself, so that one bad request fails alone. Where another deployment is full, ends or has no time,
  /// all of them fail so.
  BatchOutput predict(const BatchInput& batch);
  /// Nanoseconds of this process's clock: says, too, that it lives.
  std::int64_t clock() const;

 protected:
  virtual void load(const wire::Bytes& weights) = 0;
  virtual at::Tensor forward(const at::Tensor& input) = 0;

 private:
  at::Tensor compute(const at::Tensor& input);

  const ReplicaSetup setup_;
  const ReplicaCalls calls_;
  wire::Bytes weights_;
  Credits credits_;
};

}  // namespace troupe::serve
