// Two nets behind HTTP, and a deployment that asks both: docs/serving.md.
#include <troupe/serve.hpp>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(28 * 28, 128));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(128, 10));
  torch::Tensor forward(torch::Tensor x) { return output(torch::relu(hidden(x.flatten(1)))); }
};
TORCH_MODULE(Net);

struct Digits {
  std::string folder;
  Net model() const { return Net(); }
  troupe::data::Idx dataset(troupe::data::Split split) const {
    return troupe::data::Idx(folder, split, {.mean = 0.1307F, .std = 0.3081F});
  }
};

struct Ensemble {
  troupe::serve::Handle first, second;
  troupe::data::FieldSpec input() const { return {.shape = {1, 28, 28}}; }
  torch::Tensor predict(const torch::Tensor& input) const {                  // [N, ...] to [N, ...]
    const auto asked = first.predict(input), other = second.predict(input);  // both compute
    const torch::Tensor a = asked.get(), b = other.get();
    return (a + b) / 2;
  }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  auto first = troupe::serve::run(session, "first", Digits{"mnist"}, "first.safetensors");
  auto second =
      troupe::serve::run(session, "second", Digits{"mnist"}, "second.safetensors", {.replicas = {1, 4}});
  auto both =
      troupe::serve::run(session, "ensemble", Ensemble{first.handle(), second.handle()}, {.replicas = 2});
  first.wait();   // until Ctrl-C: those that ask it end first
  second.wait();  // each is waited for: what has accepted requests answers them
}
