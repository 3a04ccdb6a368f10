// DistributedDataParallel over a group of one rank, and DataParallel over one device.
#include <cstdio>
#include <filesystem>
#include <troupe/data_parallel.hpp>
#include <troupe/ddp.hpp>

int main() {
  const auto meeting = std::filesystem::current_path() / "meeting";
  std::filesystem::remove(meeting);
  const auto group =
      troupe::collectives::init_process_group("native", "file://" + meeting.string(), {.rank = 0, .size = 1});
  torch::nn::Linear net(3, 1);
  if (troupe::train::DataParallel(net, {.replicas = 2})(torch::ones({5, 3})).size(0) != 5) return 1;
  troupe::train::DistributedDataParallel ddp(net, group, {.static_graph = true});
  ddp->forward(torch::full({1, 3}, 145.0)).sum().backward();
  std::printf("sum %.0f\n", net->weight.grad().sum().item<double>());
  return 0;
}
