#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <vector>

#include "bench/all_reduce/contenders.hpp"

namespace bench {

void perform_gloo(Stage& stage, int rank, const std::string& folder) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, stage.ranks);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);

  const std::size_t count = stage.bytes / sizeof(float);
  std::vector<std::vector<float>> values(kAlgorithms, std::vector<float>(count));
  gloo::AllreduceRingChunked<float> chunked(context, {values[0].data()}, static_cast<int>(count));
  gloo::AllreduceHalvingDoubling<float> halving(context, {values[1].data()}, static_cast<int>(count));
  std::uint32_t tag = 0;
  const auto ring = [&] {
    gloo::AllreduceOptions options(context);
    options.setOutput(values[2].data(), count);
    options.setReduceFunction(
        [](void* out, const void* a, const void* b, std::size_t n) { gloo::sum<float>(out, a, b, n); });
    options.setTag(++tag);
    gloo::allreduce(options);
  };
  perform(
      stage, kGloo, rank, kAlgorithms, true,
      [&](int algorithm) { return values[static_cast<std::size_t>(algorithm)].data(); },
      [&](int algorithm) { algorithm == 0   ? chunked.run()
                           : algorithm == 1 ? halving.run()
                                            : ring(); });
}

}  // namespace bench
