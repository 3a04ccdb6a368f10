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

  /// Asks the first of them. REQUIRES: there is one.
  static std::shared_ptr<CallState> ask(ProcessGate* gate, const Members& members, const Names& names,
                                        const wire::Bytes& arguments) {
    (void)&registered;
    return start_call(gate, members.front().address(), kId, kName,
                      encode_call(gate, wire::kArgumentBound, kName, Argument<Members>(members),
                                  Argument<Names>(names), Argument<wire::Bytes>(arguments)),
                      nullptr, false);
  }

  static void invoke(void* object, wire::ByteView bytes, Responder responder) {
    try {
      auto asked = decode_arguments<std::tuple<Members, Names, wire::Bytes>>(bytes, kName);
      if (!asked) return responder.fail(std::move(asked).error());
      const auto& [members, names, arguments] = *asked;
      if (members.empty() || names.size() != members.size())
        return responder.fail({ErrorCode::kBadInput, "refused a fold", "it is of no members", ""});
      States states{std::make_shared<CallState>(nullptr)};
      auto whose = std::make_shared<Names>(1, names.front());
      ask_below(members, names, arguments, states, *whose);
      Method::invoke(static_cast<Object*>(static_cast<T*>(object)), arguments, Responder(states.front()));
      const auto all = all_of_members(std::move(states), std::move(whose), true);
      all->on_ready(in_this_actor(
          [all, to = std::make_shared<Responder>(std::move(responder))] { combine(all->outcome(), *to); }));
    } catch (...) {
      responder.fail(describe_exception(kName));
    }
  }
  static inline const bool registered =
      Registry::instance().add_method(kId, {std::string(kName), kClassId<T>, &invoke});

 private:
  static void ask_below(const Members& members, const Names& names, const wire::Bytes& arguments,
                        States& states, Names& whose) {
    ProcessGate& gate = this_actor().process();
    const std::size_t below = members.size() - 1, branches = std::min(below, kFoldBranches);
    for (std::size_t i = 0; i < branches; ++i) {
      const auto from = static_cast<std::ptrdiff_t>(1 + below * i / branches);
      const auto to = static_cast<std::ptrdiff_t>(1 + below * (i + 1) / branches);
      states.push_back(ask(&gate, Members(members.begin() + from, members.begin() + to),
                           Names(names.begin() + from, names.begin() + to), arguments));
      whose.push_back(names[static_cast<std::size_t>(from)]);
    }
  }
  static void combine(const Outcome& outcome, Responder& to) {
    try {
      if (!outcome.ok()) {
        ErrorInfo error = outcome.error();
        // The death of another one: it is not to be taken for the death of this one.
        if (error.origin.empty()) error.origin = kName;
        return to.fail(std::move(error));
      }
      auto answers = wire::decode<std::vector<Answer>>(*outcome).value();
      Answer folded = std::move(answers.front());
      for (std::size_t i = 1; i < answers.size(); ++i) folded = Op(std::move(folded), std::move(answers[i]));
      give_answer<Answer>(folded, to);
    } catch (...) {
      to.fail(describe_exception(kName));
    }
  }
};

}  // namespace troupe::detail
