// The state of a trainer that keeps a share of what optimizers keep: walked over, part by part.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "actors/train/engine/optimizer_shards.hpp"

namespace troupe::train {
namespace {

collectives::Buffer buffer_of_bytes(const std::byte* data, std::size_t count) {
  collectives::Buffer buffer;
  buffer.data = const_cast<std::byte*>(data);
  buffer.count = count;
  buffer.dtype = collectives::DType::kUInt8;
  return buffer;
}

/// "optimizer/fc.weight/" of "optimizer/fc.weight/exp_avg".
std::string parameter_of(const std::string& field) {
  return field.substr(0, field.rfind('/') + 1);
}

}  // namespace

class OptimizerShards::Walk final : public StateWalk {
 public:
  explicit Walk(OptimizerShards& of)
      : of_(of), mine_(of.state_.optimizer_fields([&](std::size_t i) { return of.is_mine(i); })) {
    const auto told = tell_fields();
    of_.state_.each_part(
        [this](const std::string& name, const torch::Tensor& tensor) {
          const torch::Tensor real =
              tensor.is_complex() ? torch::view_as_real(tensor.resolve_conj()) : tensor;
          add({-1, 0, real.detach().resolve_neg().contiguous().cpu()}, name);
        },
        [&](const TrainedBy& trained) {
          for (const NamedTensor& parameter : of_.parameters_) {
            const auto found = told.find(TrainState::field_name(trained, parameter.name, ""));
            if (found == told.end()) continue;
            for (const Field& field : found->second) {
              parts_.push_back(field.part);
              sources_.push_back({field.rank, field.number, {}});
            }
          }
        });
  }
  const std::vector<StatePart>& parts() const override { return parts_; }
  std::span<const std::byte> bytes(std::size_t part) override {
    const Source& from = sources_[part];
    const std::size_t size = parts_[part].bytes.size();
    if (from.rank < 0) return {static_cast<const std::byte*>(from.tensor.data_ptr()), size};
    if (from.rank == of_.group_->rank()) {
      const auto& mine = mine_.parts[from.number].bytes;
      exchange(of_.group_->broadcast(buffer_of_bytes(mine.data(), size), from.rank));
      return mine;
    }
    memory_.resize(size);
    exchange(of_.group_->broadcast(buffer_of_bytes(memory_.data(), size), from.rank));
    return memory_;
  }

 private:
  /// Of a part: all of it, or which field of a rank's.
  struct Source {
    int rank = -1;
    std::size_t number = 0;
    torch::Tensor tensor;
  };
  struct Field {
    int rank = 0;
    std::size_t number = 0;  ///< among those of the rank
    StatePart part;
  };

  void add(Source source, const std::string& name) {
    StatePart part = tensor_as_part(name, source.tensor);
    part.bytes = {static_cast<const std::byte*>(nullptr), part.bytes.size()};
    parts_.push_back(std::move(part));
    sources_.push_back(std::move(source));
  }

  void exchange(const std::shared_ptr<collectives::Work>& work) {
    of_.told_(true);
    work->wait();
    of_.told_(false);
  }

  /// By parameter, in the optimizer's order. A rank tells the header of a file of its fields, which has their
  /// numbers beside.
  std::map<std::string, std::vector<Field>> tell_fields() {
    auto& group = *of_.group_;
    checkpoint::Metadata numbers;
    for (std::size_t i = 0; i < mine_.parts.size(); ++i) numbers[mine_.parts[i].name] = std::to_string(i);
    const auto layout = checkpoint::lay_out_safetensors(mine_.parts, numbers).value();
    const std::array<std::int64_t, 2> mine{static_cast<std::int64_t>(layout.prefix.size()),
                                           static_cast<std::int64_t>(layout.total_bytes)};
    std::vector<std::int64_t> sizes(mine.size() * static_cast<std::size_t>(group.size()));
    exchange(group.all_gather(std::span(mine), std::span(sizes)));
    std::map<std::string, std::vector<Field>> all;
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::int64_t* size = &sizes[mine.size() * static_cast<std::size_t>(rank)];
      std::string prefix(static_cast<std::size_t>(size[0]), ' ');
      if (rank == group.rank()) prefix = layout.prefix;
      const auto bytes = std::as_bytes(std::span(prefix));
      exchange(group.broadcast(buffer_of_bytes(bytes.data(), bytes.size()), rank));
      const auto file = checkpoint::read_safetensors_header("the fields of a shard", bytes,
                                                            static_cast<std::uint64_t>(size[1]))
                            .value();
      for (const StatePart& one : file.tensors)
        all[parameter_of(one.name)].push_back({rank, std::stoul(file.metadata.at(one.name)), one});
    }
    for (auto& [parameter, fields] : all) {
      std::sort(fields.begin(), fields.end(),
                [](const Field& a, const Field& b) { return a.number < b.number; });
    }
    return all;
  }

  OptimizerShards& of_;
  const StateView mine_;
  std::vector<StatePart> parts_;
  std::vector<Source> sources_;
  std::vector<std::byte> memory_;  ///< of the part that was asked for last
};

std::unique_ptr<StateWalk> OptimizerShards::walk() {
  if (group_ == nullptr || group_->size() == 1) return nullptr;
  return std::make_unique<Walk>(*this);
}

}  // namespace troupe::train
