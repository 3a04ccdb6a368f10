/// What a training job tells while it runs: events, and what takes them (a terminal, lines of JSON, CSV,
/// TensorBoard). train::run makes those that its options name.
#pragma once

#include "actors/report/csv_log.hpp"
#include "actors/report/events.hpp"
#include "actors/report/json_log.hpp"
#include "actors/report/reporter.hpp"
#include "actors/report/tensorboard_log.hpp"
#include "actors/report/terminal.hpp"
