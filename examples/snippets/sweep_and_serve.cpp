// The struct of train.cpp with a space of fields, then behind HTTP. examples/sweep and examples/serve are the
// ones to run.
#include <troupe/serve.hpp>
#include <troupe/tune.hpp>


struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(28 * 28, 128));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(128, 10));
  torch::Tensor forward(torch::Tensor x) { return output(torch::relu(hidden(x.flatten(1)))); }
};
TORCH_MODULE(Net);

struct Digits {
  std::string folder;
  double lr = 0.02;

  Net model() const { return Net(); }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  troupe::data::Idx dataset(troupe::data::Split split) const {
    return troupe::data::Idx(folder, split, {.mean = 0.1307F, .std = 0.3081F});
  }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  auto best = troupe::tune::run(session, Digits{"mnist"},
                                {.space = {{&Digits::lr, troupe::tune::log_uniform(1e-4, 1e-1)}},
                                 .trials = 16,
                                 .metric = "test/accuracy",
                                 .scheduler = troupe::tune::Asha{.max_t = 3},
                                 .train = {.micro_batch = 25, .epochs = 3}});
  auto served = troupe::serve::run(session, "digits", best.job, best.checkpoint, {.replicas = {1, 4}});
  served.wait();  // curl -d '{"inputs": [...]}' http://127.0.0.1:8000/v1/digits, until Ctrl-C
}
