/// Data sets: what a training job's dataset() returns. IDX files (MNIST and its kin), CIFAR-10, rendered
/// digits, parts of them, transforms that run in the loaders, samplers, and how to write your own.
#pragma once

#include "actors/data/cifar10.hpp"
#include "actors/data/dataset.hpp"
#include "actors/data/digits.hpp"
#include "actors/data/find_mnist.hpp"
#include "actors/data/idx_dataset.hpp"
#include "actors/data/sampler.hpp"
#include "actors/data/stream.hpp"
#include "actors/data/subset.hpp"
#include "actors/data/transforms.hpp"
