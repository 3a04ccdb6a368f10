/// Data-parallel training of a struct of yours on a cluster: troupe::train::run(session, job, options).
///
/// The struct has model(), optimizer(net), criterion(output, batch) or loss(net, batch), and dataset(split).
/// The same struct, logical ranks, micro-batch and seed give the same bits, however many trainers ran and
/// whichever of them died.
///
/// Link troupe::train (docs/use-it.md). Includes torch/torch.h: precompile it where several files need it.
#pragma once

#include <torch/torch.h>

#include "actors/data/tensor_codec.hpp"
#include "actors/data/torch.hpp"
#include "actors/data/torch_dataset.hpp"
#include "actors/train/api/predict.hpp"
#include "actors/train/api/train.hpp"
#include "actors/train/api/train_fields.hpp"
#include "actors/train/job/batch.hpp"
#include "troupe/data.hpp"
#include "troupe/session.hpp"
