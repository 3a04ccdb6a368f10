#include "actors/checkpoint/strict_json.hpp"

#include <utility>
#include <vector>

namespace troupe::checkpoint {
namespace {

using nlohmann::json;

/// Builds the value from the parser's events, stopping at the first that is not allowed.
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return fail("binary data"); }
  bool start_object(std::size_t /*elements*/) override { return open(json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return fail("the key '" + name + "' twice");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const json::exception& error) override {
    // Control characters and broken UTF-8 of the input are in the exception's text; the place is enough.
    const bool range = dynamic_cast<const json::out_of_range*>(&error) != nullptr;
    return fail(std::string(range ? "a number out of range" : "no valid JSON") + " at byte " +
                std::to_string(position));
  }

  json root;
  std::string why;

 private:
  bool fail(std::string reason) {
    why = std::move(reason);
    return false;
  }

  json& place(json value) {
    if (open_.empty()) return root = std::move(value);
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return parent.back();
    }
    return parent[key_] = std::move(value);
  }

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json container) {
    if (open_.size() >= static_cast<std::size_t>(max_depth_)) {
      return fail("nesting deeper than " + std::to_string(max_depth_) + " levels");
    }
    // The pointer stays good: a container grows only while it is the innermost open one.
    open_.push_back(&place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  int max_depth_;
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

Result<nlohmann::json> parse_strict_json(std::string_view text, int max_depth) {
  Builder builder(max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return corrupt_because(builder.why);
  return std::move(builder.root);
}

}  // namespace troupe::checkpoint
