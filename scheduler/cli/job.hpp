/// troupe job: submit, list, status, why, logs, stop, wait.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

/// `argv` begins with "job". Returns the exit code, or throws troupe::Error with the one line a person reads.
int job(int argc, char** argv);

/// What a job has written. Followed to its end, or to Ctrl-C, with how it ended. Returns the exit code.
int print_output(const JobClientOptions& where, const std::string& id, const OutputOptions& reading);

/// Writes a piece of output to where it belongs. Throws IoError: its reader is gone, or the disk is full.
void take_output(const JobOutput& output);

/// "troupe: LINE" to standard error: how far something is. Throws as take_output.
void say_line(const std::string& line);

/// troupe queue: set, list, remove.
int queue(int argc, char** argv);

/// With the field names of Ray's `ray job status` and REST API, and our own behind them.
nlohmann::json as_json(const JobInfo& job);
/// The same, and why it waits.
nlohmann::json as_json(const JobReport& report);
nlohmann::json as_json(const JobQueue& queue);

}  // namespace troupe::cli
