#include "actors/train/loader.hpp"

#include <unistd.h>

#include <numeric>

#include "actors/train/job_registry.hpp"
#include "actors/train/train_driver.hpp"

namespace troupe::train {

Loader::Loader(RunSettings settings, ActorHandle<TrainDriver> driver)
    : settings_(std::move(settings)), driver_(driver) {
  const auto& type = JobRegistry::instance().find(settings_.job_type);
  train_ = type.make_dataset(settings_.job, data::Split::kTrain);
  test_ = type.make_dataset(settings_.job, data::Split::kTest);
  info_ = {train_->size(), test_->size(), train_->shape()};
  sampler_ = std::make_unique<data::LeafSampler>(sampler_options(settings_, info_));
}

int Loader::pid() const {
  return ::getpid();
}

void Loader::start_heartbeat() {
  ActorContext& me = this_actor();
  driver_.tell<&TrainDriver::loader_lives>(me.address().actor);
  me.run_after(std::chrono::seconds(1), [this] { start_heartbeat(); });
}

const data::Dataset& Loader::dataset(data::Split split) {
  return split == data::Split::kTrain ? *train_ : *test_;
}

std::span<std::byte> Loader::slot(const BatchAsk& ask) {
  auto at = regions_.find(ask.region);
  if (at == regions_.end()) {
    const Session session = this_actor().session();
    at = regions_.emplace(ask.region, session.open_region(ask.region, ask.region_bytes, "loader", false))
             .first;
    session.process().monitor(ask.trainer,
                              [this, region = ask.region](const std::string&) { regions_.erase(region); });
  }
  const auto& memory = at->second;
  if (ask.offset > memory.size() || ask.bytes > memory.size() - ask.offset) {
    throw_error(
        {ErrorCode::kLimit, "cannot construct a batch", "its slot lies outside of the trainer's region", ""});
  }
  return {memory.data() + ask.offset, ask.bytes};
}

BatchGiven Loader::load(const BatchAsk& ask) {
  std::vector<std::int64_t> indices;
  if (ask.split == data::Split::kTrain) {
    indices = sampler_->indices(ask.epoch, static_cast<std::int64_t>(ask.step), static_cast<int>(ask.leaf));
  } else {
    if (ask.begin < 0 || ask.end > info_.test_size || ask.begin >= ask.end) {
      throw_error({ErrorCode::kBadInput, "cannot construct a batch", "no such test samples", ""});
    }
    indices.resize(static_cast<std::size_t>(ask.end - ask.begin));
    std::iota(indices.begin(), indices.end(), ask.begin);
  }
  const auto need = data::batch_offsets(static_cast<std::int64_t>(indices.size()), info_.shape).total;
  const data::BatchKey key{ask.epoch, ask.step, ask.leaf};
  if (ask.trainer.node != this_actor().address().node) {
    // Aligned as batches are: a vector of bytes need not be.
    std::vector<data::BatchHeader> aligned(need / sizeof(data::BatchHeader) + 2);
    void* at = aligned.data();
    std::size_t room = aligned.size() * sizeof(data::BatchHeader);
    auto* start = static_cast<std::byte*>(std::align(data::kBatchAlignment, need, at, room));
    data::fill_batch({start, need}, key, dataset(ask.split), indices);
    return {wire::Bytes(start, start + need)};
  }
  const auto memory = slot(ask);
  if (need > memory.size())
    throw_error({ErrorCode::kLimit, "cannot construct a batch", "its slot is too small", ""});
  data::fill_batch(memory, key, dataset(ask.split), indices);
  return {};
}

}  // namespace troupe::train
