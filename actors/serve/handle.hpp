/// serve::Handle: another deployment of the same program, as a deployment's struct asks it. What is asked
/// waits in that one's queue and goes into its batches, beside what comes over HTTP.
///
///     struct Ensemble {
///       troupe::serve::Handle first, second;
///       troupe::data::FieldSpec input() const { return {.shape = {1, 28, 28}}; }
///       torch::Tensor predict(const torch::Tensor& input) const {  // [N, ...] to [N, ...]
///         const auto asked = first.predict(input), other = second.predict(input);  // both compute
///         const torch::Tensor a = asked.get(), b = other.get();
///         return (a + b) / 2;
///       }
///     };
///     auto both = troupe::serve::run(session, "both", Ensemble{first.handle(), second.handle()}, {.port =
///     0});
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "actors/data/tensor.hpp"
#include "actors/serve/deployment_types.hpp"
#include "runtime/client/actor_handle.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::serve {

class Entrance;

/// Thrown by Asked::get(): the other deployment gave no answer. Where a struct's predict lets it through, its
/// clients are told the same: 429 with Retry-After for a full queue, 503 and 504 as from the other one.
class CallFailed final : public Error {
 public:
  CallFailed(const std::string& deployment, Failure failure, const std::string& why,
             Duration retry_after = {});
  Failure failure() const { return failure_; }
  Duration retry_after() const { return retry_after_; }  ///< zero: nothing is known

 private:
  Failure failure_;
  Duration retry_after_;
};

/// On its way from a replica to the program that runs the deployments.
struct CallRequest {
  std::string deployment;
  ActorId replica{};  ///< that asks: nobody waits any more when it is gone
  std::int64_t time_left_ns = 0;
  data::DType dtype = data::DType::kFloat32;
  data::Shape shape;
  wire::Bytes values;
};
struct CallAnswer {
  std::optional<Failure> failure;
  std::string why;  ///< it failed
  std::int64_t retry_after_ns = 0;
  data::DType dtype = data::DType::kFloat32;
  data::Shape shape;
  wire::Bytes values;
};

/// What a replica asks other deployments with.
struct ReplicaCalls {
  ActorHandle<Entrance> entrance;  ///< null: its struct has no handle
  std::int64_t most_ns = 0;        ///< that a batch may wait for them: less than health_timeout
};

/// While a struct computes in this thread: handles ask by it. The innermost counts.
class CallScope {
 public:
  CallScope(const ReplicaCalls& calls, Instant deadline);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Null: none computes here.
  static const CallScope* current();
  const ReplicaCalls& calls() const { return calls_; }
  Instant deadline() const { return deadline_; }

 private:
  const ReplicaCalls& calls_;
  const Instant deadline_;
  const CallScope* const before_;
};

/// An answer that is under way. Copies share it.
class Asked {
 public:
  Asked(std::string deployment, Future<CallAnswer> answer, Instant deadline)
      : deployment_(std::move(deployment)), answer_(std::move(answer)), deadline_(deadline) {}
  /// The outputs, [rows, ...]: a torch::Tensor is one, and takes one. Waits. Throws CallFailed.
  data::Tensor get() const;

 private:
  std::string deployment_;
  Future<CallAnswer> answer_;
  Instant deadline_;
};

/// A name, and no more: it may be a member of a struct that is served, at any depth. The deployment that has
/// the name answers, also one that was stopped and runs again. Thread-safe.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::string deployment) : deployment_(std::move(deployment)) {}
  const std::string& deployment() const { return deployment_; }

  /// Asks for the outputs of these samples, [rows, ...], and does not wait. In a struct's predict, in the
  /// thread that it was called in; elsewhere it throws BadConfig. It has as much time as the requests that
  /// wait for this batch, and at most `timeout`.
  Asked predict(const data::Tensor& samples, Duration timeout = std::chrono::seconds(60)) const;

 private:
  std::string deployment_;
};

/// The names in the handles that are encoded in this thread while it lives.
class HandleNames {
 public:
  HandleNames();
  ~HandleNames();
  HandleNames(const HandleNames&) = delete;
  HandleNames& operator=(const HandleNames&) = delete;
  const std::set<std::string>& names() const { return names_; }
  static void note(const std::string& name);

 private:
  std::set<std::string> names_;
  HandleNames* const before_;
};

/// The deployments that a struct's handles name. REQUIRES: it can be sent.
template <class Job>
std::set<std::string> asked_by(const Job& job) {
  const HandleNames named;
  wire::Writer to;
  wire::write(to, job);
  return named.names();
}

/// What the requests of a batch get that failed so.
Verdict verdict_of(const CallFailed& failed);
/// The rest of the batch would fail for the same reason: its requests are not computed one by one.
bool fails_all(const CallFailed& failed);

}  // namespace troupe::serve

/// As its name.
template <>
struct troupe::wire::Codec<troupe::serve::Handle> {
  static void encode(Writer& to, const serve::Handle& handle) {
    serve::HandleNames::note(handle.deployment());
    write(to, handle.deployment());
  }
  static bool decode(Reader& from, serve::Handle& handle) {
    std::string name;
    if (!read(from, name)) return false;
    handle = serve::Handle(std::move(name));
    return true;
  }
};
