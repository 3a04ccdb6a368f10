// The registry: whose methods run on which objects, and names that two classes claim.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/host/method.hpp"

using namespace troupe;

namespace {

struct Base {
  virtual ~Base() = default;
  int level = 1;
  int which() const { return level; }
};
struct Side {
  int side = 5;
  int get_side() const { return side; }
};
struct Middle : Base, Side {};
struct Leaf : Middle {
  explicit Leaf(int start) { level = start; }
  int own() { return 7; }
};
struct Other {
  int own() { return 8; }
};

/// What the caller is told.
template <class T>
Result<T> invoke(std::uint64_t method, ActorObject& object) {
  const auto state = std::make_shared<CallState>(nullptr);
  Registry::instance().invoke(method, object, {}, Responder(state));
  REQUIRE(state->ready());
  return detail::decode_outcome<T>(state->outcome(), nullptr);
}

template <auto M>
std::uint64_t registered() {
  (void)&detail::MethodEntry<M>::registered;
  return detail::MethodEntry<M>::kId;
}

}  // namespace

TEST_CASE("an object runs the methods of its class and of its bases, however far up") {
  using Entry = detail::ConstructorEntry<Leaf, int>;
  (void)&Entry::registered;
  (void)&detail::BaseEntry<Leaf, Middle>::registered;
  (void)&detail::BaseEntry<Middle, Base>::registered;
  (void)&detail::BaseEntry<Middle, Side>::registered;
  const auto object = Registry::instance().make(Entry::kId, wire::encode(3)).value();
  CHECK(object->class_name().find("Leaf") != std::string_view::npos);
  CHECK(invoke<int>(registered<&Leaf::own>(), *object).value() == 7);
  CHECK(invoke<int>(registered<&Base::which>(), *object).value() == 3);
  CHECK(invoke<int>(registered<&Side::get_side>(), *object).value() ==
        5);  // at another address than the object
  const auto other = invoke<int>(registered<&Other::own>(), *object);
  REQUIRE_FALSE(other.ok());
  CHECK(other.error().code == ErrorCode::kRefused);
  CHECK(invoke<int>(12345, *object).error().code == ErrorCode::kRefused);
}

TEST_CASE("arguments that do not decode are the caller's error") {
  using Entry = detail::ConstructorEntry<Leaf, int>;
  const auto broken = Registry::instance().make(Entry::kId, wire::Bytes(3));
  REQUIRE_FALSE(broken.ok());
  CHECK(broken.error().code == ErrorCode::kBadInput);
  CHECK(broken.error().what.find("Leaf") != std::string::npos);
  CHECK(Registry::instance().make(12345, {}).error().code == ErrorCode::kRefused);
}

TEST_CASE("a responder that is dropped fails its call") {
  const auto state = std::make_shared<CallState>(nullptr);
  { const Responder dropped(state); }
  CHECK(state->outcome().error().code == ErrorCode::kActorDied);
}

TEST_CASE("a program in which two classes claim one method does not start") {
  // A worker ran whichever of two classes of one name was linked first.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);
    ::close(2);
    Registry registry;
    registry.add_method(1, {"Twin::run", 2, [](void*, wire::ByteView, Responder) {}});
    registry.add_method(1, {"Twin::run", 2, [](void* object, wire::ByteView, Responder) { (void)object; }});
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  Registry registry;
  const InvokeMethod same = [](void*, wire::ByteView, Responder) {};
  CHECK(registry.add_method(1, {"Counter::add", 2, same}));
  CHECK(registry.add_method(1, {"Counter::add", 2, same}));
}

// Was: what was left of a long text could begin or end within a character.
TEST_CASE("a long error is cut between characters") {
  for (std::size_t shift = 0; shift < 4; ++shift) {
    std::string what(shift, 'x');
    for (int i = 0; i < 300; ++i) what += "\xE2\x82\xAC";  // a euro sign
    ErrorInfo described;
    try {
      throw_error({ErrorCode::kBadInput, what, "because", ""});
    } catch (const Error&) {
      described = describe_exception("task");
    }
    const auto cut = described.what.find(" ... ");
    REQUIRE(cut != std::string::npos);
    CHECK(described.what.substr(cut - 3, 3) == "\xE2\x82\xAC");
    CHECK(described.what.substr(cut + 5, 3) == "\xE2\x82\xAC");
  }
}

namespace {

template <class E>
ErrorInfo described_as_thrown() {
  ErrorInfo described;
  try {
    throw E({.what = "mine"});
  } catch (const Error&) {
    described = describe_exception("task");
  }
  return described;
}
template <class E>
bool keeps_its_class() {
  try {
    throw_error(described_as_thrown<E>());
  } catch (const E& error) {
    return error.code() == described_as_thrown<E>().code && error.info().what == "task threw: mine";
  } catch (const Error&) {
  }
  return false;
}

}  // namespace

// Was: an error made without its code arrived as Error.
TEST_CASE("an error keeps its class, whatever code it was given") {
  CHECK(keeps_its_class<BadConfig>());
  CHECK(keeps_its_class<BadInput>());
  CHECK(keeps_its_class<Timeout>());
  CHECK(keeps_its_class<ActorDied>());
  CHECK(keeps_its_class<TaskFailed>());
  CHECK(keeps_its_class<CollectiveAborted>());
  CHECK(keeps_its_class<Unavailable>());
  CHECK(keeps_its_class<Refused>());
  CHECK(keeps_its_class<IoError>());
  CHECK(keeps_its_class<LimitExceeded>());
  CHECK(keeps_its_class<ObjectLost>());
  CHECK(keeps_its_class<Cancelled>());
  CHECK(Cancelled({.code = ErrorCode::kIo, .what = "mine"}).code() == ErrorCode::kCancelled);
}
