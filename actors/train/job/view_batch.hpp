/// A batch that loaders have written, as the job's code sees it.
#pragma once

#include <torch/types.h>

#include "actors/data/batch_layout.hpp"
#include "actors/data/torch.hpp"
#include "actors/train/job/batch.hpp"

namespace troupe::train {

/// No copy: the tensors are the batch's memory.
inline data::Batch as_batch(const data::BatchView& view) {
  data::Batch batch;
  batch.samples = view.header.count;
  for (const auto& field : view.fields) {
    const auto tensor = torch::from_blob(field.bytes.data(), field.shape, data::torch_dtype(field.dtype));
    if (field.name == "input") {
      batch.input = tensor;
    } else if (field.name == "target") {
      batch.target = tensor;
    } else {
      batch.others.emplace_back(field.name, tensor);
    }
  }
  return batch;
}

}  // namespace troupe::train
