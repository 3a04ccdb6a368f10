#include "actors/serve/replica.hpp"

#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "actors/data/torch.hpp"
#include "actors/ddp/freed_memory.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/job/user_code.hpp"
#include "runtime/core/short_slice.hpp"

namespace troupe::serve {
namespace {

/// What an answer carries of all outputs of a batch; a message may have 64 MiB.
constexpr std::size_t kMostOutputBytes = std::size_t{48} << 20;

[[noreturn]] void refuse_output(std::string why, std::string todo) {
  throw BadConfig("the net's output cannot be sent", std::move(why), std::move(todo));
}

/// Dense, of a type that crosses; a 16-bit float crosses as float32.
torch::Tensor as_sent(torch::Tensor output) {
  const auto type = output.scalar_type();
  if (output.layout() != torch::kStrided)
    refuse_output("its layout is " + c10::str(output.layout()) + ", not dense", "return output.to_dense()");
  if (std::none_of(data::kTorchDTypes.begin(), data::kTorchDTypes.end(),
                   [&](const auto& one) { return one.second == type; }))
    refuse_output(
        std::string("its type is ") + c10::toString(type),
        "return numbers of another type: torch::view_as_real(output), or output.to(torch::kFloat32)");
  if (type == torch::kHalf || type == torch::kBFloat16) output = output.to(torch::kFloat32);
  return output.cpu().contiguous();
}

/// What the net throws leaves as an Error; what another deployment says stays what it is.
template <class Body>
torch::Tensor run(const Body& body) {
  try {
    return body();
  } catch (const CallFailed&) {
    throw;
  } catch (...) {
    throw_error(train::describe_user_exception("the net"));
  }
}

/// Of the exception that is being handled: what all requests of its batch get; none: each is computed alone.
std::optional<Verdict> refusal_of_all() {
  try {
    throw;
  } catch (const CallFailed& failed) {
    if (fails_all(failed)) return verdict_of(failed);
  } catch (...) {
    // The net's own.
  }
  return {};
}

data::Shape with_rows(std::int64_t rows, const data::Shape& row) {
  data::Shape shape{rows};
  shape.insert(shape.end(), row.begin(), row.end());
  return shape;
}

}  // namespace

Replica::Replica(const ReplicaSetup& setup, ReplicaCalls calls) : setup_(setup), calls_(std::move(calls)) {
  train::keep_freed_memory();
  train::set_up_numerics(setup.threads);
  at::init_num_threads();
  ask_for_short_slices();
}

void Replica::add_weights(const wire::Bytes& piece) {
  weights_.insert(weights_.end(), piece.begin(), piece.end());
}

std::int64_t Replica::clock() const {
  return MonotonicClock().now().count();
}

ReplicaInfo Replica::warm_up() {
  load(std::exchange(weights_, {}));
  const CallScope asks(calls_, MonotonicClock().now() + Duration(calls_.most_ns));
  const auto zeros = [&](std::int64_t rows) {
    return compute(torch::zeros(with_rows(rows, setup_.row_shape), data::torch_dtype(setup_.dtype)));
  };
  data::Tensor output;
  try {
    output = zeros(1);
    (void)zeros(setup_.max_batch);
  } catch (const CallFailed& failed) {
    if (!fails_all(failed)) throw;
    throw_error({ErrorCode::kUnavailable, "its first batch was not computed", failed.what(), ""});
  }
  return {::getpid(), output.dtype(), {output.shape().begin() + 1, output.shape().end()}};
}

/// The outputs of these rows; those of more than a full batch piece by piece.
torch::Tensor Replica::compute(const torch::Tensor& input) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> pieces;
  for (std::int64_t at = 0; at < input.size(0); at += setup_.max_batch) {
    const torch::Tensor piece = input.slice(0, at, std::min(input.size(0), at + setup_.max_batch));
    const torch::Tensor output = run([&] { return forward(piece); });
    if (!output.defined() || output.dim() < 1 || output.size(0) != piece.size(0))
      throw BadConfig("the net's output is of another number of samples",
                      "it got " + c10::str(piece.sizes()) + " and gave " +
                          (output.defined() ? c10::str(output.sizes()) : std::string("nothing")),
                      "return a row for each sample");
    pieces.push_back(as_sent(output));
  }
  torch::Tensor all = pieces.size() == 1 ? pieces.front() : torch::cat(pieces);
  if (all.dim() > static_cast<std::int64_t>(data::kMaxDimensions))
    refuse_output("it has " + std::to_string(all.dim()) + " dimensions",
                  "use at most " + std::to_string(data::kMaxDimensions));
  if (all.nbytes() > kMostOutputBytes)
    refuse_output("it has " + std::to_string(all.nbytes()) + " bytes",
                  "at most 48 MiB: ask for fewer samples");
  return all;
}

BatchOutput Replica::predict(const BatchInput& batch) {
  const MonotonicClock clock;
  const Instant begin = clock.now();
  const std::uint32_t credits = credits_.grant(batch.proxy, begin);
  const std::size_t requests = batch.rows.size();
  std::int64_t rows = 0;
  for (const std::int64_t some : batch.rows) rows += some;
  const torch::Tensor all =
      torch::from_blob(const_cast<std::byte*>(batch.values.data()), with_rows(rows, batch.row_shape),
                       data::torch_dtype(batch.dtype));
  BatchOutput result;
  result.verdicts.resize(requests);
  result.credits = credits;
  result.began_at = begin.count();
  std::vector<torch::Tensor> inputs;  // of those in time
  std::vector<std::size_t> places;    // theirs
  for (std::size_t i = 0, row = 0; i < requests; row += static_cast<std::size_t>(batch.rows[i++])) {
    if (batch.deadlines[i] <= begin.count()) {
      result.verdicts[i].what = Verdict::What::kExpired;
      continue;
    }
    inputs.push_back(all.narrow(0, static_cast<std::int64_t>(row), batch.rows[i]));
    places.push_back(i);
  }
  std::vector<torch::Tensor> outputs;
  std::size_t bytes = 0;  // of outputs
  // Until the last of its requests gives up, and not so long that the replica seems to hang.
  const auto may_ask_until = [&](std::int64_t deadline) {
    return std::min(Instant(deadline), begin + Duration(calls_.most_ns));
  };
  try {
    const CallScope asks(calls_,
                         may_ask_until(*std::max_element(batch.deadlines.begin(), batch.deadlines.end())));
    if (!inputs.empty()) outputs.push_back(compute(inputs.size() == requests ? all : torch::cat(inputs)));
  } catch (...) {
    if (const auto refused = refusal_of_all()) {
      for (const std::size_t place : places) result.verdicts[place] = *refused;
      return result;
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      try {
        const CallScope asks(calls_, may_ask_until(batch.deadlines[places[i]]));
        if (inputs.size() == 1) throw;
        const torch::Tensor output = compute(inputs[i]);
        if (!outputs.empty() && output.sizes().slice(1) != outputs[0].sizes().slice(1))
          throw BadConfig("the net's outputs do not stack", "their shapes differ", "");
        if (bytes + output.nbytes() > kMostOutputBytes)
          refuse_output("those of its batch have more than 48 MiB together", "lower max_batch");
        bytes += output.nbytes();
        outputs.push_back(output);
      } catch (const CallFailed& failed) {
        result.verdicts[places[i]] = verdict_of(failed);
      } catch (const Error& told) {  // what the net threw says so already
        result.verdicts[places[i]] = {Verdict::What::kThrew, told.info().message()};
      } catch (...) {
        result.verdicts[places[i]] = {Verdict::What::kThrew,
                                      train::describe_user_exception("the net").message()};
      }
    }
  }
  if (outputs.empty()) return result;
  const data::Tensor output = outputs.size() == 1 ? outputs[0] : torch::cat(outputs);
  result.dtype = output.dtype();
  result.row_shape.assign(output.shape().begin() + 1, output.shape().end());
  result.values.assign(output.bytes().begin(), output.bytes().end());
  result.computed_ns = (clock.now() - begin).count();
  return result;
}

}  // namespace troupe::serve
