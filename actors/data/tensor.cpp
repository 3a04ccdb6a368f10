#include "actors/data/tensor.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

std::string kind(DType dtype, const Shape& shape) {
  return std::string(collectives::dtype_name(dtype)) + " " + to_string(shape);
}

/// The bytes of a shape's elements, or why they are none.
std::size_t count_bytes(const std::string& what, DType dtype, const Shape& shape) {
  const auto refuse = [&](std::string why, std::string todo) -> std::size_t {
    throw BadConfig("cannot use " + what + ": " + kind(dtype, shape), std::move(why), std::move(todo));
  };
  if (shape.size() > kMaxDimensions) {
    return refuse("it has " + std::to_string(shape.size()) + " dimensions",
                  "use at most " + std::to_string(kMaxDimensions));
  }
  std::size_t bytes = collectives::element_size(dtype);
  bool empty = false;
  for (const auto extent : shape) {
    if (extent < 0) return refuse("an extent is negative", "");
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  for (const auto extent : shape) {
    if (static_cast<std::uint64_t>(extent) > kMaxBatchBytes / bytes) {
      return refuse("it has more than " + std::to_string(kMaxBatchBytes >> 30) + " GiB",
                    "use smaller samples or a smaller batch");
    }
    bytes *= static_cast<std::size_t>(extent);
  }
  return bytes;
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const auto extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::size_t checked_bytes(const FieldSpec& field) {
  if (field.name.empty() || field.name.size() > kMaxNameBytes) {
    throw BadConfig("cannot use the field '" + field.name + "'",
                    "its name has " + std::to_string(field.name.size()) + " bytes",
                    "use 1 to " + std::to_string(kMaxNameBytes));
  }
  return count_bytes("the field '" + field.name + "'", field.dtype, field.shape);
}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<const std::byte> owner)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(std::move(owner)) {
  const std::size_t bytes = count_bytes("a tensor", dtype_, shape_);
  elements_ = static_cast<std::int64_t>(bytes / collectives::element_size(dtype_));
}

Tensor Tensor::uninitialised(DType dtype, Shape shape) {
  Tensor made(dtype, std::move(shape), std::shared_ptr<const std::byte>());
  // At least one byte, so that an empty tensor has an address, too.
  const auto bytes = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(made.size_bytes(), 1));
  made.bytes_ = std::shared_ptr<const std::byte>(bytes, bytes.get());
  return made;
}

Tensor::Tensor(DType dtype, Shape shape) : Tensor(uninitialised(dtype, std::move(shape))) {
  std::fill_n(fill_bytes().data(), size_bytes(), std::byte{0});
}

Tensor::Tensor(DType dtype, Shape shape, std::span<const std::byte> bytes)
    : Tensor(uninitialised(dtype, std::move(shape))) {
  if (bytes.size() != size_bytes()) {
    throw BadConfig("cannot make a tensor of " + kind(dtype_, shape_),
                    "it has " + std::to_string(elements_) + " elements, but " +
                        std::to_string(bytes.size() / collectives::element_size(dtype_)) + " were given",
                    "");
  }
  if (!bytes.empty()) std::memcpy(fill_bytes().data(), bytes.data(), bytes.size());
}

void Tensor::check_dtype(DType wanted) const {
  if (wanted == dtype_) return;
  throw BadConfig("cannot read a tensor's elements as " + std::string(collectives::dtype_name(wanted)),
                  "it is " + kind(dtype_, shape_), "");
}

const Field* Sample::find(std::string_view name) const {
  const auto at =
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) { return f.name == name; });
  return at == fields_.end() ? nullptr : &*at;
}

const Tensor& Sample::operator[](std::string_view name) const {
  if (const Field* field = find(name)) return field->value;
  std::string names;
  for (const auto& field : fields_) names += (names.empty() ? "'" : ", '") + field.name + "'";
  throw BadConfig("a sample has no field '" + std::string(name) + "'",
                  names.empty() ? "it has none" : "it has " + names, "");
}

void Sample::set(std::string_view name, Tensor value) {
  for (auto& field : fields_) {
    if (field.name != name) continue;
    field.value = std::move(value);
    return;
  }
  fields_.push_back({std::string(name), std::move(value)});
}

}  // namespace troupe::data
