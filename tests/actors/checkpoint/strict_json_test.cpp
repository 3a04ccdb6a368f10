#include "actors/checkpoint/strict_json.hpp"

#include <catch2/catch.hpp>

using namespace troupe;
using namespace troupe::checkpoint;

namespace {

std::string why_not(std::string_view text, int depth = 3) {
  const auto parsed = parse_strict_json(text, depth);
  return parsed ? "" : parsed.error().why;
}

}  // namespace

TEST_CASE("strict JSON keeps values and order of lists") {
  const auto value = parse_strict_json(R"({"a": [1, -2, 3.5, true, null, "x"], "b": {"c": {}}})", 3);
  REQUIRE(value.ok());
  CHECK(*value == nlohmann::json::parse(R"({"a": [1, -2, 3.5, true, null, "x"], "b": {"c": {}}})"));
  CHECK(*parse_strict_json("7", 1) == 7);
}

TEST_CASE("strict JSON refuses the loopholes") {
  CHECK(why_not(R"({"a": 1, "a": 1})") == "the key 'a' twice");
  CHECK(why_not(R"({"a": {"b": 1, "b": 2}})") == "the key 'b' twice");
  CHECK(why_not(R"({"a": 1, "\u0061": 1})") == "the key 'a' twice");
  CHECK(why_not("[[[]]]").empty());
  CHECK(why_not("[[[[]]]]") == "nesting deeper than 3 levels");
  CHECK(why_not(std::string(1'000'000, '[')) == "nesting deeper than 3 levels");
  CHECK(why_not("NaN") == "no valid JSON at byte 1");
  CHECK_FALSE(why_not("[Infinity]").empty());
  CHECK(why_not("1e999") == "a number out of range at byte 5");
  CHECK_FALSE(why_not("\"\xff\"").empty());
  CHECK_FALSE(why_not("{} {}").empty());
  CHECK_FALSE(why_not("{\"a\": 1,}").empty());
  CHECK_FALSE(why_not("/* c */ 1").empty());
  CHECK_FALSE(why_not("").empty());
}
