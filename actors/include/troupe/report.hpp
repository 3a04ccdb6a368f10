/// What a training job tells while it runs: events, and two that show them (a terminal's progress, lines of
/// JSON).
#pragma once

#include "actors/report/events.hpp"
#include "actors/report/json_log.hpp"
#include "actors/report/reporter.hpp"
#include "actors/report/terminal.hpp"
