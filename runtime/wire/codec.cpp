#include "runtime/wire/codec.hpp"

namespace troupe::wire {
namespace {

constexpr std::size_t kMaxDepth = 32;
/// Below this size even a message that lies about its lengths costs little memory; above it the lengths are checked
/// by a pass that allocates nothing before the object tree is built.
constexpr std::size_t kTrustedBytes = 4096;

ErrorInfo bad(std::string why) {
  return {ErrorCode::kBadInput, "cannot decode a message", std::move(why), "both sides must run the same build"};
}

}  // namespace

Result<msgpack::object_handle> parse(ByteView bytes) {
  const auto* data = reinterpret_cast<const char*>(bytes.data());
  // No container can hold more elements than there are bytes.
  const std::size_t most = bytes.size();
  const msgpack::unpack_limit limit(most, most, most, most, most, kMaxDepth);
  try {
    if (bytes.size() > kTrustedBytes) {
      std::size_t offset = 0;
      msgpack::null_visitor nothing;
      if (!msgpack::parse(data, bytes.size(), offset, nothing)) return bad("it is cut short or malformed");
    }
    std::size_t offset = 0;
    bool referenced = false;
    const auto point_into_bytes = [](msgpack::type::object_type, std::size_t, void*) { return true; };
    auto handle = msgpack::unpack(data, bytes.size(), offset, referenced, point_into_bytes, nullptr, limit);
    if (offset != bytes.size()) return bad("bytes follow its end");
    return handle;
  } catch (const std::exception& error) {  // msgpack reports malformed bytes by exceptions
    return bad(error.what());
  }
}

}  // namespace troupe::wire
