#include "actors/data/batch_builder.hpp"

#include <cstring>
#include <exception>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

/// What an exception says, without the frames of the stack that LibTorch appends.
std::string text_of(const std::exception& error) {
  std::string text = error.what();
  return text.substr(0, text.find("\nException raised from"));
}

/// Runs the user's part of a batch; `what` says which, should it throw.
template <class What, class Body>
auto as_users(What&& what, Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    throw_error({ErrorCode::kTaskFailed, what(), text_of(error), ""});
  } catch (...) {
    throw_error({ErrorCode::kTaskFailed, what(), "it threw what is no std::exception", ""});
  }
}

std::string describe(const Tensor& tensor) {
  return std::string(collectives::dtype_name(tensor.dtype())) + " " + to_string(tensor.shape());
}

/// Whether `other` can lie in one batch with `first`; throws what differs.
void check_alike(const Sample& first, std::int64_t first_index, const Sample& other,
                 std::int64_t other_index) {
  const auto refuse = [&](std::string why) {
    throw BadConfig("samples " + std::to_string(first_index) + " and " + std::to_string(other_index) +
                        " do not make one batch",
                    std::move(why), "let get() return equal shapes, or give the dataset a collate()");
  };
  for (const auto& field : first.fields()) {
    if (!other.has(field.name)) {
      refuse("sample " + std::to_string(other_index) + " has no field '" + field.name + "', sample " +
             std::to_string(first_index) + " has");
    }
    const Tensor& theirs = other[field.name];
    if (theirs.dtype() == field.value.dtype() && theirs.shape() == field.value.shape()) continue;
    refuse("'" + field.name + "' of sample " + std::to_string(other_index) + " is " + describe(theirs) +
           ", of sample " + std::to_string(first_index) + " " + describe(field.value));
  }
  if (other.fields().size() == first.fields().size()) return;
  for (const auto& field : other.fields()) {
    if (!first.has(field.name)) {
      refuse("sample " + std::to_string(other_index) + " has a field '" + field.name + "', sample " +
             std::to_string(first_index) + " has not");
    }
  }
}

FieldSpec stacked(const FieldSpec& field, std::size_t samples) {
  FieldSpec all = field;
  all.shape.insert(all.shape.begin(), static_cast<std::int64_t>(samples));
  return all;
}

}  // namespace

BatchBuilder::BatchBuilder(const Dataset& dataset, std::span<const std::int64_t> indices, RandomKey random,
                           SampleHooks hooks)
    : dataset_(dataset), indices_(indices), random_(random), hooks_(std::move(hooks)) {
  TROUPE_ASSERT(!indices.empty(), "a batch has samples");
  std::vector<FieldSpec> fields = dataset.fields();
  if (!fields.empty()) {
    for (auto& field : fields) field = stacked(field, indices.size());
    layout_.emplace(std::move(fields));
    return;
  }
  read_samples();
  collate();
  if (!collated_) plan_stack();
}

/// The sample's chance; that of other generators is a function of the same.
Random BatchBuilder::begin_sample(std::int64_t index) {
  if (hooks_.before) hooks_.before();
  if (hooks_.seed && !dataset_.uses_random_alone()) hooks_.seed(Random(random_, ~index).next());
  return Random(random_, index);
}

void BatchBuilder::read_samples() {
  samples_.reserve(indices_.size());
  for (const auto index : indices_) {
    Random random = begin_sample(index);
    samples_.push_back(as_users([&] { return "sample " + std::to_string(index) + " could not be read"; },
                                [&] { return dataset_.get(index, random); }));
    if (hooks_.after) hooks_.after();
  }
}

void BatchBuilder::collate() {
  collated_ = as_users(
      [&] {
        return "collate() failed for the batch of samples " + std::to_string(indices_.front()) + " to " +
               std::to_string(indices_.back());
      },
      [&] { return dataset_.collate(samples_); });
  if (hooks_.after) hooks_.after();
  if (!collated_) return;
  std::vector<FieldSpec> fields;
  std::int64_t elements = 0;
  for (const auto& [name, value] : collated_->fields()) {
    fields.push_back({name, value.dtype(), value.shape()});
    elements += value.elements();
  }
  if (elements == 0) {
    throw_error({ErrorCode::kTaskFailed,
                 "collate() made an empty batch of the " + std::to_string(samples_.size()) + " samples " +
                     std::to_string(indices_.front()) + " to " + std::to_string(indices_.back()),
                 "its fields have no element", "put every sample into the batch"});
  }
  samples_.clear();
  layout_.emplace(std::move(fields));
}

void BatchBuilder::plan_stack() {
  for (std::size_t i = 1; i < samples_.size(); ++i)
    check_alike(samples_.front(), indices_.front(), samples_[i], indices_[i]);
  std::vector<FieldSpec> fields;
  for (const auto& [name, value] : samples_.front().fields())
    fields.push_back(stacked({name, value.dtype(), value.shape()}, samples_.size()));
  layout_.emplace(std::move(fields));
}

void BatchBuilder::write(std::span<std::byte> memory, BatchKey key) {
  const auto& fields = layout_->fields();
  if (collated_) {
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const auto from = collated_->fields()[f].value.bytes();
      if (!from.empty()) std::memcpy(layout_->place(memory, f).data(), from.data(), from.size());
    }
  } else if (!samples_.empty()) {
    for (std::size_t f = 0; f < fields.size(); ++f) {
      auto place = layout_->place(memory, f);
      for (const auto& sample : samples_) {
        const auto from = sample[fields[f].name].bytes();
        if (!from.empty()) std::memcpy(place.data(), from.data(), from.size());
        place = place.subspan(from.size());
      }
    }
  } else {
    write_samples(memory);
  }
  layout_->seal(memory, key, indices_);
}

void BatchBuilder::write_samples(std::span<std::byte> memory) {
  const std::size_t fields = layout_->fields().size();
  std::vector<std::span<std::byte>> all(fields);
  std::vector<std::span<std::byte>> one(fields);
  for (std::size_t f = 0; f < fields; ++f) all[f] = layout_->place(memory, f);
  constexpr std::size_t kAhead = 2;
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    if (i + kAhead < indices_.size()) dataset_.prefetch(indices_[i + kAhead]);
    for (std::size_t f = 0; f < fields; ++f) {
      const std::size_t bytes = all[f].size() / indices_.size();
      one[f] = all[f].subspan(i * bytes, bytes);
    }
    Random random = begin_sample(indices_[i]);
    as_users([&] { return "sample " + std::to_string(indices_[i]) + " could not be read"; },
             [&] { dataset_.write(indices_[i], random, one); });
    if (hooks_.after) hooks_.after();
  }
}

}  // namespace troupe::data
