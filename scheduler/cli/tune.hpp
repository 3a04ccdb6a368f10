/// troupe tune: list, show, best, stop, page. It reads what sweeps have written down; no cluster is asked.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "scheduler/cli/sweep_records.hpp"

namespace troupe::cli {

/// `argv` begins with "tune". Returns the exit code, or throws troupe::Error with the one line a person
/// reads.
int tune(int argc, char** argv);

/// What troupe tune list -o json prints of it.
nlohmann::ordered_json as_json(const SweepRecords& sweep);
/// One HTML file with pictures.
std::string page_of(const SweepRecords& sweep);

}  // namespace troupe::cli
