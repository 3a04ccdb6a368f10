#include "runtime/http/metrics.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/core/error.hpp"
#include "tests/actors/serve/http/exposition.hpp"

using namespace troupe::http;

namespace {

constexpr double kBounds[] = {0.25, 1};

/// Some of each kind; "e" has two.
struct Filled {
  explicit Filled(Registry& metrics)
      : good(metrics.counter("troupe_serve_requests_total", "Requests\nanswered \\.",
                             {{"deployment", "a\"b\\c\nd\xff"}, {"code", "200"}})),
        bad(metrics.counter("troupe_serve_requests_total", "", {{"deployment", "e"}, {"code", "500"}})),
        replicas(metrics.gauge("troupe_serve_replicas", "Replicas.")),
        load(metrics.gauge("troupe_serve_load_ratio", "Load.")),
        waits(metrics.histogram("troupe_serve_wait_seconds", "Waits.", {{"deployment", "e"}}, kBounds)) {
    good->add(3);
    bad->raise_to(7);
    replicas->set(1.5);
    load->set(std::numeric_limits<double>::infinity());
    for (const double value : {0.125, 0.25, 0.5, 5.0}) waits->observe(value);
  }
  std::shared_ptr<Counter> good, bad;
  std::shared_ptr<Gauge> replicas, load;
  std::shared_ptr<Histogram> waits;
};

}  // namespace

TEST_CASE("the text that Prometheus reads") {
  Registry metrics;
  Filled filled(metrics);
  CHECK(metrics.text() ==
        R"(# HELP troupe_serve_load_ratio Load.
# TYPE troupe_serve_load_ratio gauge
troupe_serve_load_ratio +Inf
# HELP troupe_serve_replicas Replicas.
# TYPE troupe_serve_replicas gauge
troupe_serve_replicas 1.5
# HELP troupe_serve_requests_total Requests\nanswered \\.
# TYPE troupe_serve_requests_total counter
troupe_serve_requests_total{deployment="a\"b\\c\nd)"
        "\xef\xbf\xbd"
        R"(",code="200"} 3
troupe_serve_requests_total{deployment="e",code="500"} 7
# HELP troupe_serve_wait_seconds Waits.
# TYPE troupe_serve_wait_seconds histogram
troupe_serve_wait_seconds_bucket{deployment="e",le="0.25"} 2
troupe_serve_wait_seconds_bucket{deployment="e",le="1"} 3
troupe_serve_wait_seconds_bucket{deployment="e",le="+Inf"} 4
troupe_serve_wait_seconds_sum{deployment="e"} 5.875
troupe_serve_wait_seconds_count{deployment="e"} 4
)");
  // Was: what a deployment that had stopped had counted stayed for ever.
  filled.bad.reset();
  filled.waits.reset();
  CHECK(metrics.text().find("\"e\"") == std::string::npos);
  CHECK(metrics.text().find("wait_seconds") == std::string::npos);
  CHECK(metrics.text().find("code=\"200\"") != std::string::npos);
}

TEST_CASE("promtool takes it, where it is installed, and so does what looks for the same") {
  Registry metrics;
  const Filled filled(metrics);
  CHECK(problems_of_exposition(metrics.text()) == "");
  CHECK(promtool_on(metrics.text()) == "");
}

TEST_CASE("what is wrong with a page of metrics is found") {
  const std::string gauge = "# HELP troupe_a A.\n# TYPE troupe_a gauge\n";
  const std::string histogram = "# HELP troupe_h_seconds H.\n# TYPE troupe_h_seconds histogram\n";
  const std::string bucket = "troupe_h_seconds_bucket{le=\"1\"} 2\n",
                    last = "troupe_h_seconds_bucket{le=\"+Inf\"} 3\n";
  const std::string ends = "troupe_h_seconds_sum 4\ntroupe_h_seconds_count 3\n";
  CHECK(problems_of_exposition(gauge + "troupe_a{b=\"c\\\"}\",d=\"\"} 1\ntroupe_a NaN\n") == "");
  CHECK(problems_of_exposition(histogram + bucket + last + ends) == "");
  for (const std::string& page :
       {std::string(), gauge + "troupe_a 1", gauge + "troupe_b 1\n", gauge + "troupe_a x\n",
        gauge + "troupe_a{b=\"c} 1\n", gauge + "troupe_a{b=\"c\",b=\"d\"} 1\n",
        gauge + "troupe_a 1\ntroupe_a 2\n", gauge + gauge + "troupe_a 1\n", std::string("troupe_a 1\n"),
        std::string("# HELP troupe_a \n# TYPE troupe_a gauge\n"),
        std::string("# HELP a A.\n# TYPE a gauge\n"),
        std::string("# HELP troupe_a_ms A.\n# TYPE troupe_a_ms gauge\n"),
        std::string("# HELP troupe_a_total A.\n# TYPE troupe_a_total gauge\n"),
        std::string("# HELP troupe_a A.\n# TYPE troupe_a counter\n"), histogram + bucket + ends,
        histogram + bucket + last, histogram + last + bucket + ends,
        histogram + "troupe_h_seconds_bucket{le=\"1\"} 4\n" + last + ends}) {
    CAPTURE(page);
    CHECK(problems_of_exposition(page) != "");
  }
}

TEST_CASE("a metric is found again, and counts from many threads") {
  Registry metrics;
  const auto counter = metrics.counter("troupe_a_total", "A.", {{"x", "1"}});
  CHECK(metrics.counter("troupe_a_total", "A.", {{"x", "1"}}) == counter);
  CHECK(metrics.counter("troupe_a_total", "A.", {{"x", "2"}}) != counter);
  const auto histogram = metrics.histogram("troupe_b_seconds", "B.");
  std::thread other([&] {
    for (int i = 0; i < 10'000; ++i) counter->add(), histogram->observe(0.5);
  });
  for (int i = 0; i < 10'000; ++i) counter->add(), histogram->observe(0.5);
  other.join();
  CHECK(counter->value() == 20'000);
  CHECK(histogram->sum() == 10'000);
  counter->raise_to(5);
  CHECK(counter->value() == 20'000);
}

TEST_CASE("names that Prometheus does not take are refused") {
  Registry metrics;
  CHECK_THROWS_AS(metrics.counter("troupe_a", "", {}), troupe::BadConfig);
  CHECK_THROWS_AS(metrics.gauge("troupe-a", "", {}), troupe::BadConfig);
  CHECK_THROWS_AS(metrics.gauge("", "", {}), troupe::BadConfig);
  CHECK_THROWS_AS(metrics.gauge("troupe_a", "", {{"__x", ""}}), troupe::BadConfig);
  CHECK_THROWS_AS(metrics.gauge("troupe_a", "", {{"x:y", ""}}), troupe::BadConfig);
  CHECK_THROWS_AS(metrics.histogram("troupe_a", "", {{"le", ""}}), troupe::BadConfig);
  metrics.gauge("troupe_b", "", {});
  CHECK_THROWS_AS(metrics.histogram("troupe_b", "", {}), troupe::BadConfig);
}
