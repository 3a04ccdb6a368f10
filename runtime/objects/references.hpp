/// Arguments that a call gives by reference: the objects are fetched while the call waits in its actor's
/// mailbox, and decoded into the parameters.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/host/responder.hpp"
#include "runtime/host/this_thread.hpp"
#include "runtime/objects/object_bytes.hpp"
#include "runtime/objects/object_name.hpp"

namespace troupe::objects {

/// An object on its way to this process.
struct Fetch {
  explicit Fetch(Waiter* waiter) : done(waiter) {}
  CallState done;                            ///< with no bytes, or why there is none
  std::shared_ptr<const ObjectBytes> bytes;  ///< written before done is ready
  std::optional<ErrorInfo> why_beside;       ///< as these: why they are in no memory that others can map
  bool is_copy = false;      ///< as these: they are in a copy, and not in their owner's memory
  bool waits = true;         ///< for an object that is being computed; else it fails
  bool is_argument = false;  ///< of a call that waits for it: its copy waits for room
  bool is_answer = false;    ///< of a call, to its caller: where there is no room, it comes beside the store
  int broken_links = 0;      ///< of an argument: so often its owner was not reached
};

/// What a call's body ends with if it refers to objects: the names of those that are given for parameters,
/// then a byte whose bit i says that parameter i is given so.
struct Given {
  std::vector<ObjectName> names;
  std::uint8_t places = 0;

  void add(std::size_t place, const ObjectName& name) {
    names.push_back(name);
    places = static_cast<std::uint8_t>(places | (1U << place));
  }
  void append_to(wire::Writer& to) const;
  /// What is at the end of `body`; cut() takes it off. Errors: kBadInput.
  static Result<Given> read(wire::ByteView body);
  static Result<Given> cut(wire::Bytes& body);
};

/// Behind an answer that refers to objects: their names, and as a u32 how many.
void append_names(wire::Bytes& to, const wire::Kept& handles);
/// Takes them off it. Errors: kBadInput.
Result<std::vector<ObjectName>> cut_names(wire::Bytes& answer);

/// Of one call, where it arrives.
class References {
 public:
  References(std::uint8_t places, std::vector<std::shared_ptr<Fetch>> fetches)
      : places_(places), fetches_(std::move(fetches)) {}

  bool ready() const;
  /// Calls `then` once ready.
  void when_ready(std::function<void()> then) const;
  /// Runs the call: `invoke` with these arguments at hand. The answer goes out once the owners know of what
  /// the call has kept. REQUIRES: ready().
  void invoke(Responder responder, const std::function<void(Responder)>& invoke) const;

  /// The object that the parameter at `place` is given by. Null: it is a value.
  const std::shared_ptr<const ObjectBytes>* at(std::size_t place) const;

 private:
  const std::uint8_t places_;
  const std::vector<std::shared_ptr<Fetch>> fetches_;
};

/// References that are decoded in its scope, in this thread, leave their acknowledgements here.
class BorrowScope {
 public:
  BorrowScope() : before_(std::exchange(this_thread.borrows, &states_)) {}
  ~BorrowScope() { this_thread.borrows = before_; }
  BorrowScope(const BorrowScope&) = delete;
  BorrowScope& operator=(const BorrowScope&) = delete;
  /// Calls `then` once the owners know of all of them: at once if there are none.
  void when_known(std::function<void()> then);

 private:
  std::vector<std::shared_ptr<CallState>> states_;
  std::vector<std::shared_ptr<CallState>>* before_;
};

}  // namespace troupe::objects
