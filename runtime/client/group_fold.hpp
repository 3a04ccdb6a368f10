/// Folds the answers of a group's members on their way: each has a few others below it, waits for what theirs
/// come to, and passes on one answer.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/client/actor_handle.hpp"
#include "runtime/host/actor_context.hpp"

namespace troupe::detail {

using MemberNames = std::shared_ptr<const std::vector<std::string>>;
using States = std::vector<std::shared_ptr<CallState>>;
/// As all_of(); the failure says whose it is.
std::shared_ptr<CallState> all_of_members(States states, MemberNames names, bool values);

inline constexpr std::size_t kFoldBranches = 4;  ///< below each member

/// As a method of T: what M answers here and in the members below, combined by Op in the order of places.
template <class T, auto M, auto Op>
struct FoldEntry {
  using Method = MethodEntry<M>;
  using Object = typename Method::Traits::Object;
  using Answer = typename Method::Answer;
  using Members = std::vector<ActorHandle<T>>;
  using Names = std::vector<std::string>;
  static_assert(!std::is_void_v<Answer>, "call_fold<&T::method, &combine>: the method returns nothing");
  static_assert(std::is_invocable_r_v<Answer, decltype(Op), Answer, Answer>,
                "call_fold<&T::method, &combine>: combine takes two answers of the method and returns one");
  static_assert(std::is_same_v<Object, T> || std::is_base_of_v<Object, T>,
                "call_fold<&T::method, &combine>: the method belongs to another class than the members");

  static constexpr std::string_view kName = Method::kName;
  static constexpr std::string_view signature() { return __PRETTY_FUNCTION__; }
  static constexpr std::uint64_t kId = signature_hash(signature());

  /// Asks the first of them; what it fails with names it, or the member below it that failed. REQUIRES: there
  /// is one.
  static std::shared_ptr<CallState> ask(ProcessGate* gate, const Members& members, const Names& names,
                                        const wire::Bytes& arguments) {
    (void)&registered;
    auto call = start_call(gate, members.front().address(), kId, kName,
                           encode_call(gate, wire::kArgumentBound, kName, Argument<Members>(members),
                                       Argument<Names>(names), Argument<wire::Bytes>(arguments)),
                           nullptr, false);
    call->set_fold_at(names.front());
    return call;
  }

  static void invoke(void* object, wire::ByteView bytes, Responder responder) {
    try {
      auto asked = decode_arguments<std::tuple<Members, Names, wire::Bytes>>(bytes, kName);
      if (!asked) return responder.fail(std::move(asked).error());
      const auto& [members, names, arguments] = *asked;
      if (members.empty() || names.size() != members.size())
        return responder.fail({ErrorCode::kBadInput, "refused a fold", "it is of no members", ""});
      // Its own part is named here: what fails below has a name already.
      const auto own = std::make_shared<CallState>(nullptr), named = std::make_shared<CallState>(nullptr);
      own->on_ready([own, named, name = names.front()] {
        Outcome outcome = own->outcome();
        if (!outcome.ok()) outcome = failure_of(name, outcome.error());
        named->resolve(std::move(outcome), own->refers_to());
      });
      States states{named};
      ask_below(members, names, arguments, states);
      Method::invoke(static_cast<Object*>(static_cast<T*>(object)), arguments, Responder(own));
      const auto all = all_of(std::move(states), true);
      all->on_ready(
          in_this_actor([all, name = names.front(), to = std::make_shared<Responder>(std::move(responder))] {
            combine(all->outcome(), name, *to);
          }));
    } catch (...) {
      responder.fail(describe_exception(kName));
    }
  }
  static inline const bool registered =
      Registry::instance().add_method(kId, {std::string(kName), kClassId<T>, &invoke});

 private:
  static void ask_below(const Members& members, const Names& names, const wire::Bytes& arguments,
                        States& states) {
    ProcessGate& gate = this_actor().process();
    const std::size_t below = members.size() - 1, branches = std::min(below, kFoldBranches);
    for (std::size_t i = 0; i < branches; ++i) {
      const auto from = static_cast<std::ptrdiff_t>(1 + below * i / branches);
      const auto to = static_cast<std::ptrdiff_t>(1 + below * (i + 1) / branches);
      states.push_back(ask(&gate, Members(members.begin() + from, members.begin() + to),
                           Names(names.begin() + from, names.begin() + to), arguments));
    }
  }
  /// With an origin: it is not to be taken for the end of the member that passes it on.
  static ErrorInfo failure_of(const std::string& name, ErrorInfo error) {
    error.what = name + ": " + error.what;
    return with_origin(std::move(error));
  }
  static ErrorInfo with_origin(ErrorInfo error) {
    if (error.origin.empty()) error.origin = kName;
    return error;
  }
  static void combine(const Outcome& outcome, const std::string& name, Responder& to) {
    if (!outcome.ok()) return to.fail(with_origin(outcome.error()));
    try {
      auto answers = wire::decode<std::vector<Answer>>(*outcome).value();
      Answer folded = std::move(answers.front());
      for (std::size_t i = 1; i < answers.size(); ++i) folded = Op(std::move(folded), std::move(answers[i]));
      give_answer<Answer>(folded, to);
    } catch (...) {
      to.fail(failure_of(name, describe_exception("what combines the answers of " + std::string(kName))));
    }
  }
};

}  // namespace troupe::detail
