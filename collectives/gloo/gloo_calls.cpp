#include "collectives/gloo/gloo_calls.hpp"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include <complex>
#include <cstring>
#include <vector>

#include "collectives/check_op.hpp"
#include "collectives/gloo/pipe_signal.hpp"

namespace troupe::collectives {
namespace {

/// The same for all: ranks that call different operations have to meet.
constexpr std::uint32_t kComparedTag = 0;

/// Gloo writes no input, though it asks for plain pointers.
std::uint8_t* raw(const std::byte* at) {
  return reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(at));
}

template <class Options>
void set_common(Options& options, const GlooSite& site, const Op& call) {
  options.setTag(static_cast<std::uint32_t>(call.sequence));
  options.setTimeout(site.timeout);
}

/// Gloo takes the size of an element from a type.
template <class Options>
void set_elements(Options& options, std::byte* at, const Op& call) {
  switch (element_size(call.dtype)) {
    case 16:
      return options.setOutput(reinterpret_cast<std::complex<double>*>(at), call.count);
    case 8:
      return options.setOutput(reinterpret_cast<std::uint64_t*>(at), call.count);
    case 4:
      return options.setOutput(reinterpret_cast<std::uint32_t*>(at), call.count);
    case 2:
      return options.setOutput(reinterpret_cast<std::uint16_t*>(at), call.count);
    default:
      return options.setOutput(raw(at), call.count);
  }
}

template <class Options>
void set_kernel(Options& options, const Kernel& kernel) {
  options.setReduceFunction(
      [combine = kernel.combine](void* out, const void* a, const void* b, std::size_t n) {
        combine(static_cast<std::byte*>(out), static_cast<const std::byte*>(a),
                static_cast<const std::byte*>(b), n);
      });
}

void all_to_all(const GlooSite& site, const Op& call, const std::byte* from, std::byte* to,
                std::size_t block) {
  const std::size_t bytes = block * element_size(call.dtype) * static_cast<std::size_t>(site.context->size);
  gloo::AlltoallOptions options(site.context);
  set_common(options, site, call);
  options.setInput(raw(from), bytes);
  options.setOutput(raw(to), bytes);
  gloo::alltoall(options);
}

void all_gather(const GlooSite& site, const Op& call, const std::byte* from, std::byte* to,
                std::size_t block) {
  const std::size_t bytes = block * element_size(call.dtype);
  gloo::AllgatherOptions options(site.context);
  set_common(options, site, call);
  const bool in_place = from == to + static_cast<std::size_t>(site.context->rank) * bytes;
  if (!in_place) options.setInput(raw(from), bytes);
  options.setOutput(raw(to), bytes * static_cast<std::size_t>(site.context->size));
  gloo::allgather(options);
}

/// Parts of bytes, whatever the dtype.
template <class Count>
std::vector<Count> bytes_of(const std::vector<std::size_t>& counts, const Op& call) {
  std::vector<Count> bytes;
  bytes.reserve(counts.size());
  for (const std::size_t n : counts) bytes.push_back(static_cast<Count>(n * element_size(call.dtype)));
  return bytes;
}

void all_gather_v(const GlooSite& site, const Op& call) {
  gloo::AllgathervOptions options(site.context);
  set_common(options, site, call);
  const std::size_t own = call.input.count * element_size(call.dtype);
  if (!call.in_place(site.context->rank) && own != 0) options.setInput(raw(call.in()), own);
  options.setOutput(raw(call.out()), bytes_of<std::size_t>(call.counts, call));
  gloo::allgatherv(options);
}

void all_to_all_v(const GlooSite& site, const Op& call) {
  gloo::AlltoallvOptions options(site.context);
  set_common(options, site, call);
  static std::byte nothing{};  // Gloo takes no null, not even for nothing
  options.setInput(raw(call.in() != nullptr ? call.in() : &nothing),
                   bytes_of<std::int64_t>(call.counts, call));
  options.setOutput(raw(call.out() != nullptr ? call.out() : &nothing),
                    bytes_of<std::int64_t>(call.from_counts, call));
  gloo::alltoallv(options);
}

void gather(const GlooSite& site, const Op& call, const std::byte* from, std::byte* to, std::size_t block) {
  const std::size_t bytes = block * element_size(call.dtype);
  gloo::GatherOptions options(site.context);
  set_common(options, site, call);
  options.setRoot(call.peer);
  options.setInput(raw(from), bytes);
  if (to != nullptr) options.setOutput(raw(to), bytes * static_cast<std::size_t>(site.context->size));
  gloo::gather(options);
}

void scatter(const GlooSite& site, const Op& call) {
  gloo::ScatterOptions options(site.context);
  set_common(options, site, call);
  options.setRoot(call.peer);
  if (call.in() != nullptr) {
    std::vector<std::uint8_t*> parts;
    parts.reserve(static_cast<std::size_t>(site.context->size));
    for (int r = 0; r < site.context->size; ++r) {
      parts.push_back(raw(call.in()) + static_cast<std::size_t>(r) * call.bytes());
    }
    options.setInputs(std::move(parts), call.bytes());
  }
  options.setOutput(raw(call.out()), call.bytes());
  gloo::scatter(options);
}

void broadcast(const GlooSite& site, const Op& call) {
  gloo::BroadcastOptions options(site.context);
  set_common(options, site, call);
  options.setRoot(call.peer);
  options.setOutput(raw(call.out()), call.bytes());
  gloo::broadcast(options);
}

/// Gloo's own order of additions, with our loops.
void all_reduce(const GlooSite& site, const Op& call) {
  const Kernel kernel = kernel_for(call.dtype, call.how.op);
  gloo::AllreduceOptions options(site.context);
  set_common(options, site, call);
  set_elements(options, call.out(), call);
  set_kernel(options, kernel);
  gloo::allreduce(options);
  if (kernel.divide != nullptr) kernel.divide(call.out(), call.count, site.context->size);
}

void reduce(const GlooSite& site, const Op& call) {
  const Kernel kernel = kernel_for(call.dtype, call.how.op);
  std::vector<std::byte> scratch;  // Gloo adds in the output, which only the root's buffer may be
  std::byte* at = call.out();
  if (at == nullptr) {
    scratch.assign(call.in(), call.in() + call.bytes());
    at = scratch.data();
  }
  gloo::ReduceOptions options(site.context);
  set_common(options, site, call);
  options.setRoot(call.peer);
  set_elements(options, at, call);
  set_kernel(options, kernel);
  gloo::reduce(options);
  if (call.out() != nullptr && kernel.divide != nullptr) {
    kernel.divide(call.out(), call.count, site.context->size);
  }
}

void run_exact_on(const GlooSite& site, const Op& call, ExactReduction& exact) {
  const auto exchange = [&](const Exchange& e) { all_to_all(site, call, e.from, e.to, e.block); };
  if (call.kind == OpKind::kReduceScatter) return run_exact(exact, exchange, nullptr);
  if (call.kind == OpKind::kReduce) {
    return run_exact(exact, exchange, [&](const Exchange& e) { gather(site, call, e.from, e.to, e.block); });
  }
  run_exact(exact, exchange, [&](const Exchange& e) { all_gather(site, call, e.from, e.to, e.block); });
}

}  // namespace

void compare_on(const GlooSite& site, const Op& call) {
  const CallWords mine = call_words(call, site.context->rank);
  std::vector<CallWords> all(static_cast<std::size_t>(site.context->size));
  gloo::AllgatherOptions options(site.context);
  options.setTag(kComparedTag);
  options.setTimeout(site.timeout);
  options.setInput(const_cast<std::uint64_t*>(mine.data()), mine.size());
  options.setOutput(all.front().data(), all.size() * mine.size());
  gloo::allgather(options);
  if (std::string differs = difference(all); !differs.empty()) {
    throw_error({ErrorCode::kAborted, "a collective failed", std::move(differs),
                 "call the same on every rank, in the same order"});
  }
}

void run_gloo(const GlooSite& site, const Op& call, ExactReduction* exact) {
  if (exact != nullptr) return run_exact_on(site, call, *exact);
  switch (call.kind) {
    case OpKind::kAllReduce:
      return all_reduce(site, call);
    case OpKind::kReduce:
      return reduce(site, call);
    case OpKind::kBroadcast:
      return broadcast(site, call);
    case OpKind::kGather:
      return gather(site, call, call.in(), call.out(), call.count);
    case OpKind::kScatter:
      return scatter(site, call);
    case OpKind::kAllGather:
      return all_gather(site, call, call.in(), call.out(), call.count);
    case OpKind::kAllToAll:
      return all_to_all(site, call, call.in(), call.out(), call.count);
    case OpKind::kAllGatherV:
      return all_gather_v(site, call);
    case OpKind::kAllToAllV:
      return all_to_all_v(site, call);
    default: {
      gloo::BarrierOptions options(site.context);
      set_common(options, site, call);
      return gloo::barrier(options);
    }
  }
}

void close_pairs(const GlooSite& site) {
  // Gloo has no call for it; but a wait that times out, here for a message that nobody sends, fails every
  // pair of the context with an exception, and with it every other wait.
  const PipeSignalGuard guard;
  std::byte nothing{};
  try {
    site.context->createUnboundBuffer(&nothing, 1)->waitRecv(nullptr, std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // As intended.
  }
}

}  // namespace troupe::collectives
