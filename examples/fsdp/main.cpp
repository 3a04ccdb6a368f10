// A small transformer whose parameters, gradients and optimizer state are sharded over the ranks, as with
// PyTorch's FullyShardedDataParallel. Its checkpoint goes on with another number of ranks.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <troupe/fsdp.hpp>
#include <vector>

using namespace troupe;

constexpr int kLetters = 16, kWidth = 128, kLength = 24;

/// Which letter comes next.
struct TransformerImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& letters) {
    const torch::Tensor future = torch::triu(torch::full({kLength, kLength}, -INFINITY), 1);
    torch::Tensor h = embedding(letters) + position;
    for (const auto& layer : *layers) h = layer->as<torch::nn::TransformerEncoderLayer>()->forward(h, future);
    return head(h);
  }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(kLetters, kWidth));
  torch::Tensor position = register_parameter("position", 0.1 * torch::randn({kLength, 1, kWidth}));
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kLetters));
  TransformerImpl() {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0)));
    }
  }
};
TORCH_MODULE(Transformer);

/// Every word goes up by 1, 2 or 3 letters at a time: [kLength + 1, words].
torch::Tensor words(int count) {
  const torch::Tensor at = torch::arange(kLength + 1).unsqueeze(1);
  return (torch::randint(kLetters, {1, count}) + at * torch::randint(1, 4, {1, count})) % kLetters;
}

/// A file that torch.load() of Python reads, too: {name: tensor}.
void save(const std::string& path, const train::StateDict& state) {
  c10::Dict<std::string, torch::Tensor> named;
  for (const auto& item : state) named.insert(item.key(), item.value());
  const std::vector<char> bytes = torch::pickle_save(named);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
train::StateDict load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto named = torch::pickle_load(bytes).toGenericDict();
  train::StateDict state;
  for (const auto& item : named) state.insert(item.key().toStringRef(), item.value().toTensor());
  return state;
}

void run(const std::string& from, const std::string& to, int steps) {
  torch::set_num_threads(1);
  auto group = collectives::init_process_group("native", "env://");
  const bool is_first = group->rank() == 0;
  torch::manual_seed(7);
  Transformer net;
  std::size_t bytes = 0;
  for (const torch::Tensor& parameter : net->parameters()) bytes += parameter.nbytes();

  train::FullyShardedDataParallel fsdp(net, group,
                                       {.units = {"layers.0", "layers.1", "layers.2", "layers.3"}});
  torch::optim::AdamW optimizer(fsdp.parameters(), torch::optim::AdamWOptions(1e-3));
  if (!from.empty()) {  // rank 0 has it
    fsdp.load_full_state_dict(is_first ? load(from + ".net") : train::StateDict());
    fsdp.load_full_optimizer_state_dict(optimizer, is_first ? load(from + ".optimizer") : train::StateDict());
  }

  torch::manual_seed(100 + static_cast<std::uint64_t>(group->rank()));
  for (int step = 1; step <= steps; ++step) {
    const torch::Tensor batch = words(48 / group->size());
    const torch::Tensor input = batch.narrow(0, 0, kLength), next = batch.narrow(0, 1, kLength);
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(fsdp->forward(input).flatten(0, 1), next.flatten());
    loss.backward();  // each shard has the mean of its gradients when it returns
    const double norm = fsdp.clip_grad_norm_(1.0);
    optimizer.step();
    if (is_first && (step == 1 || step % 20 == 0))
      std::printf("step %d  loss %.4f  gradient %.3f\n", step, loss.item<double>(), norm);
  }

  std::size_t shards = 0;
  for (const torch::Tensor& shard : fsdp.parameters()) shards += shard.nbytes();
  const train::StateDict state = fsdp.full_state_dict(), kept = fsdp.full_optimizer_state_dict(optimizer);
  if (!is_first) return;
  std::printf("parameters %zu KiB, a rank's shards %zu KiB, whole at a time at most %zu KiB\n", bytes >> 10,
              shards >> 10, fsdp.max_whole_bytes() >> 10);
  if (to.empty()) return;
  save(to + ".net", state);
  save(to + ".optimizer", kept);
}

int main(int argc, char** argv) {
  std::string from, to;
  int steps = 40;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--load") from = argv[i + 1];
    if (flag == "--save") to = argv[i + 1];
    if (flag == "--steps") steps = std::atoi(argv[i + 1]);
  }
  if (argc % 2 == 0) {
    std::fputs("usage: fsdp [--steps 40] [--save PATH] [--load PATH], once a rank (README.md)\n", stderr);
    return 2;
  }
  try {
    run(from, to, steps);
    return 0;
  } catch (const c10::Error& error) {  // what() is followed by a stack of LibTorch's
    std::fprintf(stderr, "fsdp: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp: %s\n", error.what());
    return 1;
  }
}
