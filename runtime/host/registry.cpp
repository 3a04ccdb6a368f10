#include "runtime/host/registry.hpp"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <typeinfo>

#include "runtime/core/escape.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/host/actor_context.hpp"

namespace troupe {
namespace {

/// "an int", "a Thing".
std::string with_article(std::string_view noun) {
  const bool has_vowel =
      !noun.empty() && std::string_view("aeiouAEIOU").find(noun.front()) != std::string_view::npos;
  return std::string(has_vowel ? "an " : "a ").append(noun);
}

/// Before main there is nobody to tell but the reader of standard error.
[[noreturn]] void end_ambiguous(std::string_view kind, std::string_view name) {
  std::fprintf(
      stderr,
      "troupe: cannot start: this program has two different %.*ss called '%.*s': a call of one would run "
      "the other (rename one of them; classes in unnamed namespaces of two files count as one name)\n",
      static_cast<int>(kind.size()), kind.data(), static_cast<int>(name.size()), name.data());
  std::abort();
}

ErrorInfo refused(std::string what, std::string why) {
  return {ErrorCode::kRefused, std::move(what), std::move(why),
          "caller and actor must run the same executable"};
}

std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string readable = status == 0 && text != nullptr ? text : name;
  std::free(text);  // NOLINT: allocated by the C++ library, by malloc
  return readable;
}

std::string origin_of(std::string_view where) {
  std::string text(where);
  if (const ActorContext* actor = current_actor()) {
    const ActorAddress at = actor->address();
    text += ", actor " + to_string(at.actor) + ", process " + to_string(at.process) + ", node " +
            to_string(at.node);
  }
  return text;
}

}  // namespace

Registry& Registry::instance() {
  static Registry registry;
  return registry;
}

bool Registry::add_method(std::uint64_t id, Method method) {
  const auto [at, added] = methods_.try_emplace(id, std::move(method));
  if (!added && at->second.invoke != method.invoke) end_ambiguous("method", at->second.name);
  return true;
}

bool Registry::add_constructor(std::uint64_t id, Constructor constructor) {
  const auto [at, added] = constructors_.try_emplace(id, std::move(constructor));
  if (!added && at->second.make != constructor.make) end_ambiguous("class", at->second.name);
  return true;
}

bool Registry::add_base(std::uint64_t class_id, std::uint64_t base_id, Upcast upcast) {
  bases_[class_id].push_back({base_id, upcast});
  return true;
}

const Registry::Method* Registry::method(std::uint64_t id) const {
  const auto at = methods_.find(id);
  return at == methods_.end() ? nullptr : &at->second;
}

const Registry::Constructor* Registry::constructor(std::uint64_t id) const {
  const auto at = constructors_.find(id);
  return at == constructors_.end() ? nullptr : &at->second;
}

Result<std::unique_ptr<ActorObject>> Registry::make(std::uint64_t id, wire::ByteView args) const {
  const Constructor* known = constructor(id);
  if (known == nullptr) return refused("cannot construct an actor", "this executable has no such class");
  const ForkScope scope(known->name);
  return known->make(args);
}

void* Registry::as_class(void* object, std::uint64_t from, std::uint64_t to) const {
  if (from == to) return object;
  const auto bases = bases_.find(from);
  if (bases == bases_.end()) return nullptr;
  for (const Base& base : bases->second) {
    if (void* found = as_class(base.upcast(object), base.id, to)) return found;
  }
  return nullptr;
}

void Registry::invoke(std::uint64_t id, ActorObject& object, wire::ByteView args, Responder responder) const {
  const Method* known = method(id);
  if (known == nullptr) {
    return responder.fail(refused("cannot call a method", "this executable has no such method"));
  }
  void* self = known->class_id == kEveryClass ? object.get()
                                              : as_class(object.get(), object.class_id(), known->class_id);
  if (self == nullptr) {
    return responder.fail(
        refused("cannot call " + known->name,
                "the actor is " + with_article(object.class_name()) + ", which has no such method"));
  }
  known->invoke(self, args, std::move(responder));
}

namespace {

/// Each task of a tree that throws on says so in front: who threw first is at the end.
std::string ends_of(const std::string& text) {
  constexpr std::size_t kEnd = 200;
  constexpr std::string_view kCut = " ... ";
  if (text.size() <= 2 * kEnd + kCut.size()) return text;
  // Not within a character of UTF-8.
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  std::size_t first = kEnd, last = text.size() - kEnd;
  while (first > kEnd - 4 && continues(first)) --first;
  while (last < text.size() - kEnd + 4 && continues(last)) ++last;
  return text.substr(0, first) + std::string(kCut) + text.substr(last);
}

}  // namespace

ErrorInfo describe_exception(std::string_view where) {
  ErrorInfo info{ErrorCode::kTaskFailed, std::string(where) + " threw", "", ""};
  try {
    throw;
  } catch (const Error& error) {
    // Its own kind: a caller who handles a Timeout handles this one, too.
    info = error.info();
    info.what = ends_of(std::string(where) + " threw: " + info.what);
    if (info.type.empty()) info.type = demangled(typeid(error).name());
  } catch (const std::exception& error) {
    info.type = demangled(typeid(error).name());
    info.what += " " + info.type;
    info.why = error.what();
  } catch (const char* text) {
    info.type = "const char*";
    info.what += " a text";
    info.why = text == nullptr ? "" : text;
  } catch (const std::string& text) {
    info.type = "std::string";
    info.what += " a text";
    info.why = text;
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    info.type = type == nullptr ? "unknown" : demangled(type->name());
    info.what += " " + with_article(info.type);
    info.why = "it is no std::exception and has no message";
  }
  if (info.origin.empty()) info.origin = origin_of(where);
  for (std::string* text : {&info.what, &info.why, &info.todo}) *text = bounded_text(std::move(*text));
  return info;
}

}  // namespace troupe
