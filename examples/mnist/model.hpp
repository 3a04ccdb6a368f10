/// The reference ConvNet: two blocks of convolution, BatchNorm, ReLU and max-pool, then one linear layer.
#pragma once

#include <torch/torch.h>

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    register_module("layer1", layer1);
    register_module("layer2", layer2);
    register_module("fc", fc);
  }

  /// [N, 1, 28, 28] to logits [N, 10].
  torch::Tensor forward(const torch::Tensor& images) {
    return fc->forward(layer2->forward(layer1->forward(images)).flatten(1));
  }

  static torch::nn::Sequential block(int in, int out) {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 5).padding(2)),
                                 torch::nn::BatchNorm2d(out), torch::nn::ReLU(), torch::nn::MaxPool2d(2));
  }

  torch::nn::Sequential layer1 = block(1, 16);
  torch::nn::Sequential layer2 = block(16, 32);
  torch::nn::Linear fc{7 * 7 * 32, 10};
};
TORCH_MODULE(ConvNet);
