/// The shape of a group of actors: named dimensions, the last of which runs fastest.
#pragma once

#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

namespace troupe {

struct Dimension {
  std::string name;
  std::size_t size = 1;
  bool operator==(const Dimension&) const = default;
};

/// {{"host", 2}, {"gpu", 4}}, or a number of members. A value.
class GroupShape {
 public:
  GroupShape() = default;  ///< of no members
  /// Throws BadConfig for 0, and for more than 65,536 members.
  GroupShape(std::size_t members) : GroupShape({{"member", members}}) {}  // NOLINT: implicit on purpose
  /// Throws BadConfig as well for a dimension without a name, or with that of another one.
  GroupShape(std::initializer_list<Dimension> dimensions);  // NOLINT

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  std::size_t size() const;
  /// The place of the member with these coordinates. Throws BadConfig for too few, too many or too large
  /// ones.
  std::size_t place_of(const std::vector<std::size_t>& coordinates) const;
  /// Throws BadConfig for a place that no member has.
  void check_places(const std::vector<std::size_t>& places) const;
  /// "member 5 (host=1, gpu=1)".
  std::string name_of(std::size_t place) const;
  /// The places at which a dimension has that coordinate, in order, and their shape: one without it, or of
  /// one member. Throws BadConfig if there is none.
  std::pair<std::vector<std::size_t>, GroupShape> slice(const std::string& dimension, std::size_t at) const;

  bool operator==(const GroupShape&) const = default;
  auto troupe_fields() { return std::tie(dimensions_); }

 private:
  std::vector<Dimension> dimensions_;
};

}  // namespace troupe
