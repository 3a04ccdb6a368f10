#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <deque>
#include <memory>
#include <vector>

#include "bench/collectives/contenders.hpp"

namespace bench {
namespace {

/// Everything that Gloo has for one operation.
class Algorithms {
 public:
  Algorithms(std::shared_ptr<gloo::rendezvous::Context> context, const Shape& shape)
      : context_(std::move(context)), shape_(shape), count_(static_cast<int>(shape.count)) {}

  std::vector<Algorithm> make() {
    switch (shape_.op) {
      case Op::kAllReduce:
        return {in_place<gloo::AllreduceRingChunked<float>>(),
                in_place<gloo::AllreduceHalvingDoubling<float>>(), all_reduce()};
      case Op::kBroadcast:
        return {broadcast(), broadcast_one_to_all()};
      case Op::kReduceScatter:
        return {reduce_scatter()};
      case Op::kAllGather:
        return {all_gather(), all_gather_ring()};
      case Op::kAllToAll:
        return {all_to_all()};
    }
    return {};
  }

 private:
  float* room(std::size_t count) { return memory_.emplace_back(count).data(); }

  template <class Kind>
  Algorithm in_place() {
    float* values = room(shape_.count);
    auto kind = std::make_shared<Kind>(context_, std::vector<float*>{values}, count_);
    return {values, values, [kind] { kind->run(); }};
  }
  Algorithm all_reduce() {
    float* values = room(shape_.count);
    return {values, values, [this, values] {
              gloo::AllreduceOptions options(context_);
              options.setOutput(values, shape_.count);
              options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
                gloo::sum<float>(out, a, b, n);
              });
              options.setTag(++tag_);
              gloo::allreduce(options);
            }};
  }
  Algorithm broadcast() {
    float* values = room(shape_.count);
    return {values, values, [this, values] {
              gloo::BroadcastOptions options(context_);
              options.setOutput(values, shape_.count);
              options.setRoot(0);
              options.setTag(++tag_);
              gloo::broadcast(options);
            }};
  }
  Algorithm broadcast_one_to_all() {
    float* values = room(shape_.count);
    auto kind =
        std::make_shared<gloo::BroadcastOneToAll<float>>(context_, std::vector<float*>{values}, shape_.count);
    return {values, values, [kind] { kind->run(); }};
  }
  Algorithm reduce_scatter() {
    float* values = room(shape_.count);  // its own part comes to the front
    auto kind = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        context_, std::vector<float*>{values}, count_,
        std::vector<int>(static_cast<std::size_t>(shape_.ranks), static_cast<int>(shape_.part())));
    return {values, values, [kind] { kind->run(); }};
  }
  Algorithm all_gather() {
    float *from = room(shape_.part()), *to = room(shape_.count);
    return {from, to, [this, from, to] {
              gloo::AllgatherOptions options(context_);
              options.setInput(from, shape_.part());
              options.setOutput(to, shape_.count);
              options.setTag(++tag_);
              gloo::allgather(options);
            }};
  }
  Algorithm all_gather_ring() {
    float *from = room(shape_.part()), *to = room(shape_.count);
    auto kind = std::make_shared<gloo::AllgatherRing<float>>(context_, std::vector<const float*>{from}, to,
                                                             static_cast<int>(shape_.part()));
    return {from, to, [kind] { kind->run(); }};
  }
  Algorithm all_to_all() {
    float *from = room(shape_.count), *to = room(shape_.count);
    return {from, to, [this, from, to] {
              gloo::AlltoallOptions options(context_);
              options.setInput(from, shape_.count);
              options.setOutput(to, shape_.count);
              options.setTag(++tag_);
              gloo::alltoall(options);
            }};
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  Shape shape_;
  int count_;
  std::deque<std::vector<float>> memory_;
  std::uint32_t tag_ = 0;
};

}  // namespace

void perform_gloo(Stage& stage, int rank, const std::string& folder, const std::string& interface) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = interface;
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, stage.ranks);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  Algorithms algorithms(context, stage.shape());
  perform(stage, kGloo, rank, true, algorithms.make());
}

}  // namespace bench
