/// A page of metrics as Prometheus reads it (text format 0.0.4), held to what its own checker says, and to
/// our names.
#pragma once

#include <string>

namespace troupe::http {

/// What is wrong with it, a line each; empty: nothing. Every family has HELP and TYPE before its samples,
/// which stand together; names begin with troupe_ and are in base units; counters end in _total; no series
/// comes twice; a histogram's buckets ascend, end with +Inf and sum up to its count.
std::string problems_of_exposition(const std::string& text);

/// What `promtool check metrics` says of it; empty: nothing, or it is not installed (package prometheus).
std::string promtool_on(const std::string& text);

}  // namespace troupe::http
