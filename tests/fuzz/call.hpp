/// The arguments of a call with one of everything that crosses processes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/wire/codec.hpp"

namespace troupe::fuzz {

enum class Mode : std::uint8_t { kTrain = 0, kTest = 1 };

struct Inner {
  std::string name;
  std::vector<float> weights;
  std::optional<double> lr;
};

struct Outer {
  bool on = false;
  std::int8_t small = 0;
  std::uint64_t large = 0;
  Mode mode = Mode::kTrain;
  std::chrono::nanoseconds timeout{0};
  wire::Bytes blob;
  std::vector<std::string> names;
  std::map<std::string, Inner> parts;
  std::variant<int, std::string, Inner> choice;
  std::pair<std::int32_t, std::vector<std::vector<std::int64_t>>> shape;
  std::set<std::uint32_t> ids;
  std::unordered_map<std::int32_t, std::string> index;
  std::deque<std::int16_t> deque;
  std::list<Inner> list;
  std::tuple<> nothing;
  std::array<std::string, 3> triple;
};

using Arguments = std::tuple<Outer, std::string, std::vector<Inner>, std::vector<bool>>;

}  // namespace troupe::fuzz
