/// Loops of HTTP requests. Closed: each connection sends the next one when it has its answer. Open: requests
/// are due at times of a Poisson process that are drawn before, and latency counts from when one was due, so
/// that a server that stalls is not asked less.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct LoadResult {
  double seconds = 0;
  std::vector<double> latencies_s;  ///< sorted
  int failed = 0;                   ///< answers other than 200
  double lag_p99_s = 0;             ///< open: how late a request was sent that a free connection waited for

  double rate() const { return static_cast<double>(latencies_s.size()) / seconds; }
  double percentile(double p) const;
};

/// The bytes of a request; `fields`: lines of its head, each with its line end.
std::string http_request(const std::string& method, const std::string& path, const std::string& fields,
                         const std::string& body);
/// Sends `request` on so many connections at a time, for so long, from this one thread.
LoadResult load(std::uint16_t port, const std::string& request, int connections, double seconds);
/// The same, `rate` of them a second, whenever they are due; what finds no free connection waits for one.
LoadResult load_open(std::uint16_t port, const std::string& request, int connections, double rate,
                     double seconds);
