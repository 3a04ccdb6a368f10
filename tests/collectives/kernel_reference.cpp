#include "tests/collectives/kernel_reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace troupe::collectives::testing {
namespace {

bool is_signed(DType dtype) {
  return dtype != DType::kUInt8 && dtype != DType::kBool && dtype != DType::kUInt16 &&
         dtype != DType::kUInt32 && dtype != DType::kUInt64;
}

Bits ones(int count) {
  return count == 64 ? ~Bits{0} : (Bits{1} << count) - 1;
}
int width_of(DType dtype) {
  return 8 * static_cast<int>(element_size(dtype));
}
Bits infinity_of(Format f) {
  return ones(f.exponent) << f.digits;
}

/// The integer that the bits are, in two's complement.
std::int64_t integer_of(DType dtype, Bits bits) {
  const int unused = 64 - width_of(dtype);
  if (!is_signed(dtype)) return static_cast<std::int64_t>(bits);
  return static_cast<std::int64_t>(bits << unused) >> unused;
}

/// A result as the dtype keeps it: f64 is computed in f64, the other floats in f32.
template <class Operation>
Bits computed(DType dtype, Operation operation) {
  if (dtype == DType::kFloat64) return encoded(dtype, operation(double{}));
  return encoded(dtype, static_cast<double>(operation(float{})));
}

Bits combined_floats(DType dtype, ReduceOp op, Bits a, Bits b) {
  const double x = decoded(dtype, a), y = decoded(dtype, b);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return computed(dtype, [&]<class T>(T) { return static_cast<T>(x) + static_cast<T>(y); });
    case ReduceOp::kProduct:
      return computed(dtype, [&]<class T>(T) { return static_cast<T>(x) * static_cast<T>(y); });
    default:
      break;
  }
  if (std::isnan(x) || std::isnan(y)) return encoded(dtype, std::numeric_limits<double>::quiet_NaN());
  const bool a_is_less = x < y || (x == y && std::signbit(x));
  return a_is_less == (op == ReduceOp::kMin) ? a : b;
}

Bits combined_integers(DType dtype, ReduceOp op, Bits a, Bits b) {
  const std::int64_t x = integer_of(dtype, a), y = integer_of(dtype, b);
  const auto ux = static_cast<Bits>(x), uy = static_cast<Bits>(y);
  const auto result = [&]() -> Bits {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kPremulSum:
        return ux + uy;
      case ReduceOp::kProduct:
        return ux * uy;
      case ReduceOp::kMin:
        return is_signed(dtype) ? static_cast<Bits>(std::min(x, y)) : std::min(ux, uy);
      case ReduceOp::kMax:
        return is_signed(dtype) ? static_cast<Bits>(std::max(x, y)) : std::max(ux, uy);
      case ReduceOp::kBand:
        return ux & uy;
      case ReduceOp::kBor:
        return ux | uy;
      default:
        return ux ^ uy;
    }
  };
  return result() & ones(width_of(dtype));
}

Bits combined_bools(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return a || b ? 1 : 0;
    case ReduceOp::kBxor:
      return a != b ? 1 : 0;
    default:
      return a && b ? 1 : 0;
  }
}

}  // namespace

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return {52, 11};
    case DType::kFloat32:
      return {23, 8};
    case DType::kFloat16:
      return {10, 5};
    case DType::kBFloat16:
      return {7, 8};
    case DType::kFloat8E4M3:
      return {3, 4};
    case DType::kFloat8E5M2:
      return {2, 5};
    default:
      throw std::logic_error("not a float");
  }
}

double decoded(DType dtype, Bits bits) {
  const Format f = format_of(dtype);
  const Bits digits = bits & ones(f.digits);
  const int exponent = static_cast<int>(bits >> f.digits & ones(f.exponent));
  const int bias = (1 << (f.exponent - 1)) - 1;
  const double sign = bits >> (f.digits + f.exponent) != 0 ? -1 : 1;
  if (dtype == DType::kFloat8E4M3 && (bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  if (dtype != DType::kFloat8E4M3 && exponent == static_cast<int>(ones(f.exponent))) {
    return digits != 0 ? std::numeric_limits<double>::quiet_NaN()
                       : sign * std::numeric_limits<double>::infinity();
  }
  const Bits leading = exponent == 0 ? 0 : Bits{1} << f.digits;
  return sign * std::ldexp(static_cast<double>(leading + digits), std::max(exponent, 1) - bias - f.digits);
}

Bits encoded(DType dtype, double value) {
  const Format f = format_of(dtype);
  const int bias = (1 << (f.exponent - 1)) - 1;
  const bool is_byte = element_size(dtype) == 1;
  if (is_byte && std::isnan(value)) return 0x7f;
  if (std::isnan(value)) return infinity_of(f) | Bits{1} << (f.digits - 1);
  const Bits sign = Bits{std::signbit(value)} << (f.digits + f.exponent);
  const double magnitude = std::abs(value);
  const bool finite_only = dtype == DType::kFloat8E4M3;
  if (std::isinf(value)) return finite_only ? 0x7f : sign | infinity_of(f);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // The value in units of its last digit, rounded to the nearest; a carry into the next exponent adds up.
  const auto units = static_cast<Bits>(std::nearbyint(std::ldexp(magnitude, f.digits - exponent)));
  const Bits bits = (static_cast<Bits>(exponent + bias - 1) << f.digits) + units;
  if (finite_only) return bits >= 0x7f ? 0x7f : sign | bits;
  return sign | std::min(bits, infinity_of(f));
}

Bits combined(DType dtype, ReduceOp op, Bits a, Bits b) {
  if (dtype == DType::kBool) return combined_bools(op, a != 0, b != 0);
  return is_float(dtype) ? combined_floats(dtype, op, a, b) : combined_integers(dtype, op, a, b);
}

Bits divided(DType dtype, Bits value, int divisor) {
  const double x = decoded(dtype, value);
  return computed(dtype, [&]<class T>(T) { return static_cast<T>(x) / static_cast<T>(divisor); });
}

Bits scaled(DType dtype, Bits value, double factor) {
  if (is_float(dtype)) {
    const double x = decoded(dtype, value);
    return computed(dtype, [&]<class T>(T) { return static_cast<T>(x) * static_cast<T>(factor); });
  }
  return combined_integers(dtype, ReduceOp::kProduct, value,
                           static_cast<Bits>(static_cast<std::int64_t>(factor)) & ones(width_of(dtype)));
}

std::vector<Bits> special_values(DType dtype) {
  std::vector<Bits> values;
  if (!is_float(dtype)) {
    const int width = width_of(dtype);
    for (Bits v : {Bits{0}, Bits{1}, Bits{2}, Bits{3}, ones(width / 2), ones(width), ones(width) - 1,
                   ones(width - 1), ones(width - 1) + 1, ones(width - 1) + 2})
      values.push_back(v & ones(width));
    return values;
  }
  const Format f = format_of(dtype);
  const Bits infinity = infinity_of(f), quiet = Bits{1} << (f.digits - 1), one = Bits{1} << f.digits;
  for (Bits v : {Bits{0},
                 Bits{1},
                 Bits{2},
                 quiet,
                 one - 1,
                 one,
                 one + 1,
                 encoded(dtype, 1),
                 encoded(dtype, 1) + 1,
                 encoded(dtype, 1) - 1,
                 encoded(dtype, 3),
                 encoded(dtype, 0.5),
                 infinity - 1,
                 infinity - 2,
                 infinity - one,
                 infinity,
                 infinity + 1,
                 infinity + quiet,
                 infinity + quiet + 5,
                 infinity + one - 1}) {
    values.push_back(v);
    values.push_back(v | Bits{1} << (f.digits + f.exponent));
  }
  return values;
}

Bits random_value(DType dtype, Random& random) {
  const Bits any = random.next() & ones(width_of(dtype));
  if (!is_float(dtype) || random.below(2) == 0) return any;
  const Format f = format_of(dtype);
  const Bits bias = ones(f.exponent - 1);
  return (any & ~infinity_of(f)) | (bias - 3 + random.below(6)) << f.digits;
}

Bits load(DType dtype, const std::byte* at, std::size_t index) {
  Bits value = 0;
  const std::size_t size = element_size(dtype);
  std::memcpy(&value, at + index * size, size);
  return value;
}

void store(DType dtype, std::byte* at, std::size_t index, Bits value) {
  const std::size_t size = element_size(dtype);
  std::memcpy(at + index * size, &value, size);
}

std::vector<std::byte> packed(DType dtype, const std::vector<Bits>& values) {
  std::vector<std::byte> bytes(values.size() * element_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) store(dtype, bytes.data(), i, values[i]);
  return bytes;
}

}  // namespace troupe::collectives::testing
