// What `troupe serve run` decides by what jobs and programs tell: tests/e2e/serving_file_test.cpp and
// take_over_test.cpp run it.
#include "scheduler/cli/serve_run.hpp"

#include <catch2/catch.hpp>

#include "scheduler/cli/job_names.hpp"

using namespace troupe;

TEST_CASE("of the jobs of one file the last took the place of those before") {
  CHECK(cli::place_of_job("digits", "digits") == 1);
  CHECK(cli::place_of_job("digits", "digits~2") == 2);
  CHECK(cli::place_of_job("digits", "digits~10") == 10);
  for (const char* other :
       {"digit", "digits2", "digits~", "digits~1", "digits~02", "digits~2x", "other~2", ""})
    CHECK(cli::place_of_job("digits", other) == 0);
}

TEST_CASE("the ports that a successor leaves are those of which it serves everything elsewhere") {
  const auto left = [](const char* before, const char* after) {
    return cli::left_ports(nlohmann::ordered_json::parse(before), nlohmann::ordered_json::parse(after));
  };
  const char* const both = R"([{"name":"a","port":1},{"name":"b","port":1},{"name":"c","port":2}])";
  CHECK(left(both, "[]").empty());
  CHECK(left(both, both).empty());
  CHECK(left(both, R"([{"name":"a","port":3}])").empty());  // b is yet to come
  CHECK(left(both, R"([{"name":"a","port":3},{"name":"b","port":1}])").empty());
  CHECK(left(both, R"([{"name":"a","port":3},{"name":"b","port":4}])") == std::vector<int>{1});
  CHECK(left(R"([{"name":"a","port":1},{"name":"a","port":2}])", R"([{"name":"a","port":2}])").empty());
  CHECK(left(R"([1,{"name":7,"port":1},{"name":"a","port":"x"}])", R"([{"name":"a","port":2}])").empty());
}

// Was: of one that had given its place away, and answered what it had left, it was said that it serves on.
TEST_CASE("a program serves on while one of its deployments does not stop") {
  const auto serves_on = [](const char* told) { return cli::serves_on(nlohmann::ordered_json::parse(told)); };
  CHECK(serves_on(R"([{"name":"a","state":"stopping"},{"name":"b","state":"updating"}])"));
  CHECK_FALSE(serves_on(R"([{"name":"a","state":"stopping"}])"));
  CHECK_FALSE(serves_on("[]"));  // its place is another's
}

// Was: waited for until the command's own time was over.
TEST_CASE("a deployment whose place another program keeps is told, with why") {
  const auto told = [](const char* refused) {
    const auto error = cli::refused_of({"a", "b"}, nlohmann::ordered_json::parse(refused));
    return error ? error->message() : "";
  };
  for (const char* none : {"{}", "null", "7", R"({"c":"it is held"})"}) CHECK(told(none) == "");
  CHECK_THAT(told(R"({"b":"it is held\n"})"),
             Catch::Contains("'b' is not going to serve: it is held") && !Catch::Contains("\n"));
  CHECK_THAT(told(R"({"a":7})"), Catch::Contains("'a'"));
}

// Was: of one that had given its place to a program that died a moment later it was said that it serves on,
// as long as its job had not ended.
TEST_CASE("a program that is heard no more where it was heard serves no more, unless it is only silent") {
  const auto serves = nlohmann::ordered_json::parse(R"([{"name":"a","state":"ready"}])");
  const auto drains = nlohmann::ordered_json::parse(R"([{"name":"a","state":"stopping"}])");
  CHECK(cli::goes_on(false, &serves, false));
  CHECK(cli::goes_on(false, nullptr, true));  // stopped, say: it has its place
  CHECK_FALSE(cli::goes_on(false, &drains, false));
  CHECK_FALSE(cli::goes_on(false, nullptr, false));
  CHECK_FALSE(cli::goes_on(true, &serves, false));  // as it told before
  CHECK_FALSE(cli::goes_on(true, nullptr, true));   // another one is silent
}
