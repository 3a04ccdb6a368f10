/// Serves a trained struct over HTTP: troupe::serve::run(session, name, job, weights, options).
///
///     auto served = troupe::serve::run(session, "digits", Digits{folder}, result, {.replicas = {1, 4}});
///     served.wait();
///
/// Link troupe::serve (docs/use-it.md). Includes torch/torch.h: precompile it where several files need it.
#pragma once

#include "actors/serve/serve.hpp"
#include "troupe/train.hpp"
