#include "runtime/client/encode_call.hpp"

#include "runtime/host/may_wait.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::detail {
namespace {

/// Eight of them, the most that a call has, leave room for the names behind them.
constexpr std::size_t kMostAPart = wire::kMaxBodyBytes / 8 - 4096;
/// As long as a call waits for room in the window of its receiver.
constexpr Duration kRoomDeadline = std::chrono::seconds(60);

[[noreturn]] void rethrow(const Error& error, const char* what, std::string_view of) {
  ErrorInfo info = error.info();
  info.what = std::string("cannot send ") + what + std::string(of) + ": " + info.what;
  throw_error(std::move(info));
}

/// In a task none: it may hold the very worker that the calls before need.
Duration wait_for_room() {
  return this_thread.helper == nullptr ? kRoomDeadline : Duration::zero();
}

}  // namespace

std::size_t most_in_message() {
  return thread_may_wait() ? objects::kInlineBytes : kMostAPart;
}

template <class Put>
void CallParts::put(std::size_t place, std::size_t bytes, Put put) {
  try {
    refer(place, gate_.objects()->argument(put()));
  } catch (const Error& error) {
    rethrow(error, "an argument of ", of_);
  }
  object_bytes_ += bytes;
}

void CallParts::refer(std::size_t place, const objects::HandlePtr& object) {
  given_.add(place, object->name());
  message_.keep(object);
}

bool CallParts::add_numbers(std::size_t place, wire::ByteView numbers) {
  if (numbers.size() <= most_) return false;
  put(place, numbers.size(), [&] { return gate_.objects()->put(numbers, wait_for_room(), object_bytes_); });
  return true;
}

void CallParts::add(std::size_t place, wire::Bytes&& bytes, std::vector<std::shared_ptr<const void>> kept) {
  for (auto& one : kept) message_.keep(std::move(one));
  const std::size_t size = bytes.size();
  if (size <= most_) return message_.append(bytes);
  if (thread_may_wait())
    return put(place, size,
               [&] { return gate_.objects()->put(wire::ByteView(bytes), wait_for_room(), object_bytes_); });
  put(place, size, [&] { return put_object(gate_, std::move(bytes)); });
}

CallBody CallParts::take() {
  CallBody body;
  body.kept = message_.kept();
  if (!body.kept.empty()) given_.append_to(message_);
  body.bytes = message_.take(of_);
  body.object_bytes = object_bytes_;
  return body;
}

CallBody put_constructor(ProcessGate& gate, std::string_view of, CallBody body) {
  CallBody put;
  put.kept = std::move(body.kept);
  put.object_bytes = body.bytes.size();
  try {
    const auto object = put_object(gate, std::move(body.bytes));
    put.bytes = wire::encode(object->name());
    put.kept.push_back(object);
  } catch (const Error& error) {
    rethrow(error, "the constructor arguments of ", of);
  }
  return put;
}

}  // namespace troupe::detail
