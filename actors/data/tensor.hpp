/// What a sample is made of: named tensors of any dtype and shape, without LibTorch. torch.hpp makes them of
/// torch::Tensor and back.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/types.hpp"

namespace troupe::data {

using collectives::DType;
/// Extents, outermost first; empty: a scalar.
using Shape = std::vector<std::int64_t>;

/// "[3, 32, 32]", and "[]" for a scalar.
std::string to_string(const Shape& shape);

/// Bounds of every tensor and batch: what is above is refused with an error that names it.
inline constexpr std::size_t kMaxDimensions = 8;
inline constexpr std::size_t kMaxFields = 64;
inline constexpr std::size_t kMaxNameBytes = 39;
inline constexpr std::size_t kMaxBatchBytes = std::size_t{4} << 30;

/// The C++ types of elements. (Half-precision elements come from torch::Tensor or as bytes.)
template <class T>
concept Element = std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, std::int8_t> ||
    std::same_as<T, std::int16_t> || std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t> ||
    std::same_as<T, std::uint8_t> || std::same_as<T, bool>;

/// How another library's tensor becomes one of ours and back; specialised in its adapter (torch.hpp).
template <class Foreign>
struct TensorTraits;
template <class Foreign>
concept ForeignTensor = requires(const Foreign& tensor) {
  TensorTraits<Foreign>::from(tensor);
};

/// Contiguous elements on the CPU. Copies share them.
class Tensor {
 public:
  /// No elements and one dimension of extent 0.
  Tensor() = default;
  /// Zeros. Throws BadConfig for a shape above the bounds or with a negative extent.
  Tensor(DType dtype, Shape shape);
  /// The same with whatever the memory holds, for who writes every element.
  static Tensor uninitialised(DType dtype, Shape shape);
  /// Elements that `owner` keeps alive. REQUIRES: as many bytes as the shape has.
  Tensor(DType dtype, Shape shape, std::shared_ptr<const std::byte> owner);

  /// A scalar, with LibTorch's types for numbers: an integer becomes int64, a number with a point float32.
  template <class Number>
  requires std::is_arithmetic_v<Number> Tensor(Number number)
      : Tensor(scalar_of(number)) {}  // NOLINT: implicit on purpose

  /// One dimension, or `shape`. Throws BadConfig where the shape has another number of elements.
  template <Element T>
  requires(!std::same_as<T, bool>) Tensor(const std::vector<T>& elements)  // NOLINT: implicit on purpose
      : Tensor(elements, Shape{static_cast<std::int64_t>(elements.size())}) {}
  template <Element T>
  requires(!std::same_as<T, bool>) Tensor(const std::vector<T>& elements, Shape shape)
      : Tensor(collectives::dtype_of<T>(), std::move(shape), std::as_bytes(std::span(elements))) {}
  /// A copy of `bytes`.
  Tensor(DType dtype, Shape shape, std::span<const std::byte> bytes);

  /// Another library's tensor. Throws what its adapter throws (not on the CPU, an unknown dtype).
  template <ForeignTensor Foreign>
  Tensor(const Foreign& tensor) : Tensor(TensorTraits<Foreign>::from(tensor)) {}  // NOLINT: on purpose
  template <ForeignTensor Foreign>
  operator Foreign() const {  // NOLINT: on purpose
    return TensorTraits<Foreign>::to(*this);
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t dimensions() const { return static_cast<std::int64_t>(shape_.size()); }
  std::int64_t elements() const { return elements_; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_bytes()}; }
  const std::shared_ptr<const std::byte>& owner() const { return bytes_; }

  /// The elements. Throws BadConfig when they are of another type.
  template <Element T>
  std::span<const T> values() const {
    check_dtype(collectives::dtype_of<T>());
    return {reinterpret_cast<const T*>(bytes_.get()), static_cast<std::size_t>(elements_)};
  }
  /// The elements to write. Only for who has just made the tensor: copies of it see the change.
  template <Element T>
  std::span<T> fill() {
    const auto all = values<T>();
    return {const_cast<T*>(all.data()), all.size()};
  }
  std::span<std::byte> fill_bytes() { return {const_cast<std::byte*>(bytes_.get()), size_bytes()}; }

 private:
  template <class Number>
  static Tensor scalar_of(Number number) {
    using T = std::conditional_t<std::same_as<Number, bool>, bool,
                                 std::conditional_t<std::is_integral_v<Number>, std::int64_t, float>>;
    const T one = static_cast<T>(number);
    return Tensor(collectives::dtype_of<T>(), Shape{}, std::as_bytes(std::span(&one, 1)));
  }
  void check_dtype(DType wanted) const;
  std::size_t size_bytes() const {
    return static_cast<std::size_t>(elements_) * collectives::element_size(dtype_);
  }

  DType dtype_ = DType::kFloat32;
  Shape shape_{0};
  std::int64_t elements_ = 0;
  std::shared_ptr<const std::byte> bytes_;
};

/// A named tensor.
struct Field {
  std::string name;
  Tensor value;
};

/// Named tensors: one sample, or what collate() made of several. In the order in which they were named.
///
///     return {{"input", image}, {"target", label}};
class Sample {
 public:
  Sample() = default;
  Sample(std::initializer_list<Field> fields) : fields_(fields) {}

  const std::vector<Field>& fields() const { return fields_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Throws BadConfig, naming the fields there are.
  const Tensor& operator[](std::string_view name) const;
  /// Adds the field, or replaces it.
  void set(std::string_view name, Tensor value);

 private:
  const Field* find(std::string_view name) const;
  std::vector<Field> fields_;
};

/// A field's name and kind, without its values.
struct FieldSpec {
  std::string name{};
  DType dtype = DType::kFloat32;
  Shape shape{};
  bool operator==(const FieldSpec&) const = default;
};

/// Bytes of the elements. Throws BadConfig, naming the field, for a name, shape or size above the bounds.
std::size_t checked_bytes(const FieldSpec& field);

}  // namespace troupe::data
