#include "runtime/client/group_shape.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMostMembers = 65'536;

}  // namespace

GroupShape::GroupShape(std::initializer_list<Dimension> dimensions) : dimensions_(dimensions) {
  const auto refuse = [](std::string why, std::string todo) {
    throw BadConfig("cannot make a group of that shape", std::move(why), std::move(todo));
  };
  std::size_t members = 1;
  for (auto at = dimensions_.begin(); at != dimensions_.end(); ++at) {
    if (at->name.empty()) refuse("a dimension has no name", "name each: {{\"host\", 2}, {\"gpu\", 4}}");
    if (std::any_of(dimensions_.begin(), at, [&](const Dimension& other) { return other.name == at->name; }))
      refuse("two dimensions are named " + at->name, "give each a name of its own");
    if (at->size == 0 || at->size > kMostMembers / members)
      refuse(at->name + " = " + std::to_string(static_cast<std::ptrdiff_t>(at->size)),
             "ask for 1 to 65,536 members in all");
    members *= at->size;
  }
  if (dimensions_.empty()) refuse("it has no dimension", "say how many members it has");
}

std::size_t GroupShape::size() const {
  std::size_t members = dimensions_.empty() ? 0 : 1;
  for (const Dimension& dimension : dimensions_) members *= dimension.size;
  return members;
}

void GroupShape::check_places(const std::vector<std::size_t>& places) const {
  for (const std::size_t place : places) {
    if (place < size()) continue;
    throw BadConfig("a group has no member " + std::to_string(place),
                    "it has " + std::to_string(size()) + ", numbered from 0", "name places of this group");
  }
}

std::size_t GroupShape::place_of(const std::vector<std::size_t>& coordinates) const {
  bool fits = coordinates.size() == dimensions_.size();
  std::size_t place = 0;
  for (std::size_t i = 0; fits && i < coordinates.size(); ++i) {
    fits = coordinates[i] < dimensions_[i].size;
    place = place * dimensions_[i].size + coordinates[i];
  }
  if (!fits) {
    std::string dimensions;
    for (const Dimension& one : dimensions_) dimensions += " " + one.name + "=" + std::to_string(one.size);
    throw BadConfig("a group has no such member", "its dimensions are" + dimensions,
                    "give a coordinate below the size for each");
  }
  return place;
}

std::string GroupShape::name_of(std::size_t place) const {
  std::string name = "member " + std::to_string(place);
  if (dimensions_.size() < 2) return name;
  std::string coordinates;
  for (auto at = dimensions_.rbegin(); at != dimensions_.rend(); place /= at->size, ++at)
    coordinates.insert(0, ", " + at->name + "=" + std::to_string(place % at->size));
  return name + " (" + coordinates.substr(2) + ")";
}

std::pair<std::vector<std::size_t>, GroupShape> GroupShape::slice(const std::string& dimension,
                                                                  std::size_t at) const {
  const auto found = std::find_if(dimensions_.begin(), dimensions_.end(),
                                  [&](const Dimension& one) { return one.name == dimension; });
  if (found == dimensions_.end() || at >= found->size) {
    throw BadConfig("a group has no slice " + dimension + "=" + std::to_string(at),
                    found == dimensions_.end() ? "it has no such dimension"
                                               : "its size is " + std::to_string(found->size),
                    "see GroupShape::dimensions()");
  }
  std::size_t inner = 1;
  for (auto after = found + 1; after != dimensions_.end(); ++after) inner *= after->size;
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < size(); ++place) {
    if (place / inner % found->size == at) places.push_back(place);
  }
  GroupShape shape = *this;
  shape.dimensions_.erase(shape.dimensions_.begin() + (found - dimensions_.begin()));
  return {std::move(places), shape.dimensions_.empty() ? GroupShape(1) : std::move(shape)};
}

}  // namespace troupe
