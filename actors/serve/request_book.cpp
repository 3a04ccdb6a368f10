#include "actors/serve/request_book.hpp"

#include <array>
#include <utility>

#include "actors/serve/http/raw_tensor.hpp"
#include "runtime/core/log.hpp"

namespace troupe::serve {
namespace {

constexpr double kRowBounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

std::size_t bytes_of(data::DType dtype, const data::Shape& shape) {
  std::size_t bytes = collectives::element_size(dtype);
  for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

}  // namespace

bool is_lost(const ErrorInfo& error) {
  return error.code == ErrorCode::kActorDied || error.code == ErrorCode::kUnavailable;
}

int http_status(Failure failure) {
  switch (failure) {
    case Failure::kQueueFull:
      return 429;
    case Failure::kUnavailable:
      return 503;
    case Failure::kDeadline:
      return 504;
    case Failure::kReplicaDied:
    case Failure::kModel:
      break;
  }
  return 500;
}

ErrorCode error_code(Failure failure) {
  switch (failure) {
    case Failure::kQueueFull:
      return ErrorCode::kLimit;
    case Failure::kUnavailable:
      return ErrorCode::kUnavailable;
    case Failure::kDeadline:
      return ErrorCode::kTimeout;
    case Failure::kReplicaDied:
      return ErrorCode::kActorDied;
    case Failure::kModel:
      break;
  }
  return ErrorCode::kTaskFailed;
}

std::optional<std::string> refusal(const Front& front, data::DType dtype, const data::Shape& shape) {
  const ReplicaSetup& setup = front.setup();
  const auto rows = shape.empty() ? 0 : shape[0];
  if (rows >= 1 && static_cast<std::size_t>(rows) <= front.max_request_rows() && dtype == setup.dtype &&
      data::Shape(shape.begin() + 1, shape.end()) == setup.row_shape)
    return {};
  const auto name = [](data::DType of) { return std::string(http::tensor_dtype_name(of)); };
  return "these are " + name(dtype) + " " + data::to_string(shape) + ": give [rows, ...] of " +
         name(setup.dtype) + " " + data::to_string(setup.row_shape) + ", at most " +
         std::to_string(front.max_request_rows()) + " at a time";
}

std::shared_ptr<http::Counter> requests_counter(http::Registry& of, const std::string& deployment,
                                                int status) {
  http::Labels labels{{"code", std::to_string(status)}};
  if (!deployment.empty()) labels.emplace_back("deployment", deployment);
  return of.counter("troupe_serve_requests_total", "Requests that ended, by the code of their response.",
                    labels);
}

struct RequestBook::Metrics {
  Metrics(http::Registry& all, const std::string& name)
      : answered(requests_counter(all, name, 200)),
        latency(all.histogram("troupe_serve_request_duration_seconds",
                              "From a request's arrival to its answer, of those answered.",
                              {{"deployment", name}})),
        queue_wait(all.histogram("troupe_serve_queue_wait_seconds",
                                 "From a request's arrival until it was sent to a replica.",
                                 {{"deployment", name}})),
        batch_rows(all.histogram("troupe_serve_batch_rows", "Rows of the batches that were computed.",
                                 {{"deployment", name}}, kRowBounds)),
        compute(all.histogram("troupe_serve_batch_compute_seconds", "What the net took for a batch.",
                              {{"deployment", name}})),
        left(all.counter("troupe_serve_cancelled_total", "Requests whose client left before the answer.",
                         {{"deployment", name}})),
        retries(all.counter("troupe_serve_retries_total", "Requests sent again, since their replica died.",
                            {{"deployment", name}})) {
    for (std::size_t i = 0; i < kFailures; ++i)
      failed[i] = requests_counter(all, name, http_status(static_cast<Failure>(i)));
  }

  std::shared_ptr<http::Counter> answered;
  std::array<std::shared_ptr<http::Counter>, kFailures> failed;
  std::shared_ptr<http::Histogram> latency;
  std::shared_ptr<http::Histogram> queue_wait;
  std::shared_ptr<http::Histogram> batch_rows;
  std::shared_ptr<http::Histogram> compute;
  std::shared_ptr<http::Counter> left;
  std::shared_ptr<http::Counter> retries;
};

RequestBook::RequestBook(ReplicaSetup setup, std::string name, http::Registry& metrics)
    : setup_(std::move(setup)), name_(std::move(name)), metrics_(std::make_unique<Metrics>(metrics, name_)) {}

RequestBook::~RequestBook() = default;

void RequestBook::drop_metrics() {
  http::Registry nowhere;
  metrics_ = std::make_unique<Metrics>(nowhere, name_);
}

void RequestBook::add(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) {
  requests_.emplace(id, Waiting{std::move(inputs), deadline, clock_.now(), std::move(reply)});
}

bool RequestBook::leave(RequestId id) {
  if (requests_.erase(id) == 0) return false;
  metrics_->left->add();
  return true;
}

BatchInput RequestBook::batch_of(const SendBatch& action, Duration clock_offset, ProxyId proxy) {
  BatchInput batch{setup_.dtype, setup_.row_shape, {}, {}, {}, proxy};
  std::size_t bytes = 0;
  for (const RequestId id : action.requests) bytes += requests_.at(id).inputs.bytes().size();
  batch.values.reserve(bytes);
  const Instant now = clock_.now();
  for (const RequestId id : action.requests) {
    Waiting& request = requests_.at(id);
    const auto values = request.inputs.bytes();
    batch.values.insert(batch.values.end(), values.begin(), values.end());
    batch.rows.push_back(request.inputs.shape()[0]);
    batch.deadlines.push_back((request.deadline + clock_offset).count());
    if (std::exchange(request.sent, true)) {
      metrics_->retries->add();
    } else {
      metrics_->queue_wait->observe(to_seconds(now - request.arrived));
    }
  }
  return batch;
}

BatchDone RequestBook::take(const SendBatch& sent, VersionId version, const std::vector<std::int64_t>& rows,
                            Result<BatchOutput> result) {
  BatchDone done{sent.replica, sent.batch, {}, {}};
  returned_.assign(sent.requests.size(), {{}, version, {}});
  if (!result) {
    log(LogLevel::kWarning, name_ + ": replica " + std::to_string(sent.replica) +
                                " failed at a batch: " + result.error().message());
    done.verdicts.assign(
        sent.requests.size(),
        {Verdict::What::kThrew, "its replica failed at its batch: the server's log says why"});
    return done;
  }
  const auto output = std::make_shared<const BatchOutput>(*std::move(result));
  const std::size_t row_bytes = bytes_of(output->dtype, output->row_shape);
  std::int64_t all_rows = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < sent.requests.size() && output->verdicts.size() == rows.size(); ++i) {
    if (output->verdicts[i].what != Verdict::What::kAnswered) continue;
    const std::size_t bytes = static_cast<std::size_t>(rows[i]) * row_bytes;
    if (at + bytes > output->values.size()) return done;  // no answer to any of them
    data::Shape shape{rows[i]};
    shape.insert(shape.end(), output->row_shape.begin(), output->row_shape.end());
    returned_[i].outputs = data::Tensor(output->dtype, std::move(shape),
                                        std::shared_ptr<const std::byte>(output, output->values.data() + at));
    at += bytes;
    all_rows += rows[i];
  }
  metrics_->batch_rows->observe(static_cast<double>(all_rows));
  metrics_->compute->observe(to_seconds(Duration(output->computed_ns)));
  done.verdicts = output->verdicts;
  done.computed = Duration(output->computed_ns);
  done.credits = output->credits;
  return done;
}

void RequestBook::deliver(const Deliver& action) {
  const auto request = requests_.extract(action.request);
  metrics_->answered->add();
  metrics_->latency->observe(to_seconds(clock_.now() - request.mapped().arrived));
  request.mapped().reply(std::move(returned_.at(action.place)));
}

void RequestBook::fail(const Fail& action) {
  const auto request = requests_.extract(action.request);
  metrics_->failed[static_cast<std::size_t>(action.failure)]->add();
  request.mapped().reply({{}, 0, action});
}

}  // namespace troupe::serve
