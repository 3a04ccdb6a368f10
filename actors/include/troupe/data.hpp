/// Data sets: what a training job's dataset() returns. IDX files (MNIST and its kin), rendered digits, and
/// the interface for your own.
#pragma once

#include "actors/data/dataset.hpp"
#include "actors/data/digits.hpp"
#include "actors/data/find_mnist.hpp"
#include "actors/data/idx_dataset.hpp"
#include "actors/data/subset.hpp"
