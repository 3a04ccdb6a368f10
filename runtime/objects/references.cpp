#include "runtime/objects/references.hpp"

#include <atomic>
#include <bit>

#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

constexpr std::size_t kNameBytes = 24;
static_assert(sizeof(ObjectName) == kNameBytes);

ErrorInfo no_names() {
  return {ErrorCode::kBadInput, "refused a call", "it should end with the names of objects, and does not",
          "the caller must run the same executable"};
}

/// Calls `then` when all are ready.
template <class Each>
void when_all_ready(const Each& each, std::size_t count, std::function<void()> then) {
  if (count == 0) return then();
  const auto left = std::make_shared<std::atomic<std::size_t>>(count);
  const auto last = std::make_shared<std::function<void()>>(std::move(then));
  for (std::size_t i = 0; i < count; ++i) {
    each(i).on_ready([left, last] {
      if (left->fetch_sub(1) == 1) (*last)();
    });
  }
}

}  // namespace

void Given::append_to(wire::Writer& to) const {
  for (const auto& name : names) to.append(&name, sizeof name);
  to.append(&places, sizeof places);
}

Result<Given> Given::read(wire::ByteView body) {
  if (body.empty()) return no_names();
  Given given;
  given.places = static_cast<std::uint8_t>(body.back());
  const auto count = static_cast<std::size_t>(std::popcount(given.places));
  if (body.size() < 1 + count * kNameBytes) return no_names();
  const std::size_t left = body.size() - 1 - count * kNameBytes;
  given.names.resize(count);
  if (count != 0) std::memcpy(given.names.data(), body.data() + left, count * kNameBytes);
  return given;
}

Result<Given> Given::cut(wire::Bytes& body) {
  auto given = read(body);
  if (given) body.resize(body.size() - 1 - given->names.size() * kNameBytes);
  return given;
}

void append_names(wire::Bytes& to, const wire::Kept& handles) {
  const auto append = [&to](const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
  };
  for (const auto& handle : handles) append(static_cast<const Handle*>(handle.get())->name());
  append(static_cast<std::uint32_t>(handles.size()));
}

Result<std::vector<ObjectName>> cut_names(wire::Bytes& answer) {
  std::uint32_t count = 0;
  const ErrorInfo wrong{ErrorCode::kBadInput, "refused an answer",
                        "it should end with the names of objects, and does not",
                        "both must run the same executable"};
  if (answer.size() < sizeof count) return wrong;
  answer.resize(answer.size() - sizeof count);
  std::memcpy(&count, answer.data() + answer.size(), sizeof count);
  if (count > answer.size() / kNameBytes) return wrong;
  std::vector<ObjectName> names(count);
  answer.resize(answer.size() - count * kNameBytes);
  if (count != 0) std::memcpy(names.data(), answer.data() + answer.size(), count * kNameBytes);
  return names;
}

bool References::ready() const {
  for (const auto& fetch : fetches_) {
    if (!fetch->done.ready()) return false;
  }
  return true;
}

void References::when_ready(std::function<void()> then) const {
  when_all_ready([&](std::size_t i) -> CallState& { return fetches_[i]->done; }, fetches_.size(),
                 std::move(then));
}

const std::shared_ptr<const ObjectBytes>* References::at(std::size_t place) const {
  if (place >= 8 || (places_ >> place & 1U) == 0) return nullptr;
  const unsigned before = places_ & ((1U << place) - 1);
  return &fetches_[static_cast<std::size_t>(std::popcount(before))]->bytes;
}

void References::invoke(Responder responder, const std::function<void(Responder)>& invoke) const {
  for (const auto& fetch : fetches_) {
    if (!fetch->done.outcome().ok()) return responder.fail(fetch->done.outcome().error());
  }
  const auto answer = std::make_shared<CallState>(nullptr);
  responder.passes_on(*answer);
  BorrowScope borrows;
  const auto* before = std::exchange(this_thread.given, this);
  invoke(Responder(answer));
  this_thread.given = before;
  borrows.when_known([answer, later = std::make_shared<Responder>(std::move(responder))] {
    answer->on_ready([answer, later] { later->outcome(answer->outcome(), answer->refers_to()); });
  });
}

void BorrowScope::when_known(std::function<void()> then) {
  when_all_ready([&](std::size_t i) -> CallState& { return *states_[i]; }, states_.size(), std::move(then));
}

}  // namespace troupe::objects
