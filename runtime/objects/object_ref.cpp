#include "runtime/objects/object_ref.hpp"

#include "runtime/core/error.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/host/this_thread.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::detail {
namespace {

std::shared_ptr<objects::Objects> checked(std::shared_ptr<objects::Objects> objects) {
  if (objects == nullptr) {
    throw BadConfig("an object was used outside of a cluster", "this process belongs to none",
                    "use it while the session lives, in a process of the cluster");
  }
  return objects;
}

}  // namespace

objects::BytesPtr get_object(const objects::HandlePtr& handle, Duration timeout) {
  const auto fetch = checked(handle->objects())->fetch(handle->name());
  if (!fetch->done.ready()) {
    if (const ActorContext* actor = current_actor(); actor != nullptr && !actor->may_block()) {
      throw BadConfig(
          "an object is not here yet",
          "it was asked for now, and a light actor may not wait for it: it shares its thread with "
          "thousands of others",
          "take it as a parameter of the value's type, which is there when the method begins, or "
          "get() it in a later call, or spawn the actor with .isolated = true");
    }
    if (!fetch->done.wait(timeout)) {
      const auto objects = handle->objects();
      const std::string why = objects == nullptr ? "" : objects->why_waits(handle->name());
      throw Timeout({ErrorCode::kTimeout, "an object did not come",
                     "within " + std::to_string(to_seconds(timeout)) + " s" +
                         (why.empty() ? "" : "; its task still waits: " + why),
                     "raise the timeout"});
    }
  }
  fetch->done.outcome().value();  // throws why there is none
  return fetch->bytes;
}

wire::ByteView bytes_of(const objects::BytesPtr& object) {
  return object->view();
}

objects::HandlePtr put_object(ProcessGate& gate, wire::ByteView bytes) {
  return checked(gate.objects())->put(bytes);
}
objects::HandlePtr put_object(ProcessGate& gate, wire::Bytes&& bytes) {
  return checked(gate.objects())->put(std::move(bytes));
}

objects::HandlePtr hold_object(const objects::ObjectName& name) {
  ProcessGate* gate = ProcessGate::current();
  const auto objects = gate == nullptr ? nullptr : gate->objects();
  return objects == nullptr ? nullptr : objects->hold(name);
}

objects::ObjectName name_of(const objects::HandlePtr& handle) {
  return handle->name();
}

const objects::BytesPtr* given_object(std::size_t place) {
  return this_thread.given == nullptr ? nullptr : this_thread.given->at(place);
}

void end_decoding() {
  this_thread.given = nullptr;
  this_thread.borrows = nullptr;
}

void throw_empty_reference() {
  throw BadConfig("an ObjectRef without an object was used", "it was default-constructed or moved from",
                  "use what Session::put gave");
}

void throw_given_reference() {
  throw BadConfig("an ObjectRef was given for a value", "only calls of actors and tasks fetch it",
                  "give what get() returns");
}

void throw_undecodable(const ErrorInfo& why) {
  throw BadInput(why);
}

}  // namespace troupe::detail
