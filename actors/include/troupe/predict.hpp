/// Answers requests with trained weights: troupe::train::Predictor. Link troupe::train.
#pragma once

#include "actors/train/api/predictor.hpp"
#include "troupe/train.hpp"
