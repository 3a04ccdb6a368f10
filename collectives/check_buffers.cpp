#include "collectives/check_buffers.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

#include "collectives/native/kernels.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

[[noreturn]] void refuse(const Call& call, std::string why, std::string todo) {
  throw_error({ErrorCode::kBadInput, "cannot " + std::string(call.name), std::move(why), std::move(todo)});
}

bool overlap(const Buffer& a, const Buffer& b) {
  const auto from_a = reinterpret_cast<std::uintptr_t>(a.data),
             from_b = reinterpret_cast<std::uintptr_t>(b.data);
  return from_a < from_b + b.count * element_size(b.dtype) &&
         from_b < from_a + a.count * element_size(a.dtype);
}

}  // namespace

void check_count(const Call& call, std::size_t count) {
  if (count <= kMaxElements) return;
  throw_error({ErrorCode::kLimit, "cannot " + std::string(call.name),
               "a buffer of " + std::to_string(count) + " elements is larger than 2^40", "split it"});
}

void check_buffer(const Call& call, std::string_view which, const Buffer& buffer) {
  const auto refuse_it = [&](const std::string& what, std::string todo) {
    refuse(call, "the " + std::string(which) + what, std::move(todo));
  };
  if (buffer.dtype > DType::kBool) {
    refuse_it(" has dtype " + std::to_string(static_cast<int>(buffer.dtype)), "give one that DType names");
  }
  check_count(call, buffer.count);
  if (buffer.device.kind != call.device) {
    const bool cpu = call.device == DeviceKind::kCpu;
    refuse_it(std::string(" is not in the memory of ") + (cpu ? "the CPU" : "a CUDA device"),
              "copy it there, or use a backend for its device");
  }
  if (buffer.count == 0) return;
  if (buffer.data == nullptr) {
    refuse_it(" is null and has " + std::to_string(buffer.count) + " elements", "give memory for them");
  }
  if ((reinterpret_cast<std::uintptr_t>(buffer.data) & (element_size(buffer.dtype) - 1)) != 0) {
    refuse_it(" is not aligned to its elements (" + std::string(dtype_name(buffer.dtype)) + ")",
              "align it to " + std::to_string(element_size(buffer.dtype)) + " bytes");
  }
}

void check_reduction(const Call& call, DType dtype, const Reduction& how, bool tree) {
  const std::string name(dtype_name(dtype));
  const std::string by = name + " by " + std::string(reduce_op_name(how.op));
  if (const std::string why = why_not(dtype, how.op); !why.empty()) {
    refuse(call, by + ": " + why, "docs/collectives.md lists the operations of each dtype");
  }
  if (how.op != ReduceOp::kPremulSum) return;
  if (tree) {
    refuse(call,
           by + ": scaled sums of leaves have other bits than sums of scaled leaves, so the result would "
                "depend on how leaves are dealt",
           "scale the leaves and use sum");
  }
  if (!factor_fits(dtype, how.factor)) {
    char factor[32];
    std::snprintf(factor, sizeof factor, "%g", how.factor);
    refuse(call, by + name + " has no " + factor, "give a factor that the dtype has");
  }
}

void check_rank(const Call& call, std::string_view role, int rank) {
  if (rank >= 0 && rank < call.size) return;
  refuse(call,
         std::string(role) + " is rank " + std::to_string(rank) + ", and there are " +
             std::to_string(call.size) + " ranks",
         "ranks count from 0");
}

std::size_t check_parts(const Call& call, Parts parts, const Buffer& input, const Buffer& output) {
  check_buffer(call, "input", input);
  check_buffer(call, "output", output);
  if (input.dtype != output.dtype) {
    refuse(call,
           "the input has " + std::string(dtype_name(input.dtype)) + " and the output " +
               std::string(dtype_name(output.dtype)),
           "use one dtype for both");
  }
  if (input.device != output.device) {
    refuse(call, "input and output are on different devices", "put both on one");
  }
  const auto size = static_cast<std::size_t>(call.size);
  const auto refuse_counts = [&](std::string todo) {
    refuse(call,
           "the input has " + std::to_string(input.count) + " elements and the output " +
               std::to_string(output.count) + ", with " + std::to_string(call.size) + " ranks",
           std::move(todo));
  };
  if (parts == Parts::kGathered && (output.count % size != 0 || output.count / size != input.count)) {
    refuse_counts("the output holds size() x the input");
  }
  if (parts == Parts::kScattered && (input.count % size != 0 || input.count / size != output.count)) {
    refuse_counts("the input holds size() x the output");
  }
  if (parts == Parts::kExchanged && (input.count != output.count || input.count % size != 0)) {
    refuse_counts("both hold size() parts of the same count");
  }
  const std::size_t part =
      parts == Parts::kGathered ? input.count : output.count / (parts == Parts::kExchanged ? size : 1);
  if (part == 0 || !overlap(input, output)) return part;
  const std::size_t at = static_cast<std::size_t>(call.rank) * part * element_size(input.dtype);
  const auto* in = static_cast<const std::byte*>(input.data);
  const auto* out = static_cast<const std::byte*>(output.data);
  const bool in_place =
      (parts == Parts::kGathered && in == out + at) || (parts == Parts::kScattered && out == in + at);
  if (!in_place) {
    refuse(call, "input and output overlap",
           parts == Parts::kExchanged
               ? "give two buffers"
               : "give two buffers, or this rank's part of the larger one as the other");
  }
  return part;
}

}  // namespace troupe::collectives
