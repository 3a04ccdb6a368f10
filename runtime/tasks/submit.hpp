/// Tasks: functions of the program that run in workers of the cluster.
///
///   double area(double width, double height);
///   troupe::Future<double> result = session.submit<&area>(3, 4);
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/client/encode_call.hpp"
#include "runtime/client/future.hpp"
#include "runtime/host/method.hpp"

namespace troupe {

/// How a task is run.
struct TaskOptions {
  double num_cpus = 1;      ///< CPUs that it holds on its node, in steps of 1/10000
  double num_gpus = 0;      ///< as ActorOptions::num_gpus
  std::int64_t memory = 0;  ///< this and the next two: as ActorOptions has them
  std::map<std::string, double> resources{};
  std::map<std::string, std::string> labels{};
  int max_retries =
      3;  ///< how often it is tried again when its worker or node dies, or what retry_exceptions says
  /// It is tried again as well when its code throws, of the same max_retries; the last failure is its answer.
  bool retry_exceptions = false;
  NodeId node{};              ///< on this node and no other
  GroupId placement_group{};  ///< as ActorOptions::placement_group
  int bundle = -1;            ///< as ActorOptions::bundle
};

namespace tasks {

struct Runner;

/// Runs the body of a task in this process (Tasks::run).
void run_body(const std::function<void()>& body);
/// A task that was pushed to this worker, while it runs. Takes its number off its arguments.
class PushedTask {
 public:
  /// `bytes`: those of a call. REQUIRES: this process runs tasks.
  explicit PushedTask(wire::ByteView& bytes);
  ~PushedTask();
  PushedTask(const PushedTask&) = delete;
  PushedTask& operator=(const PushedTask&) = delete;
  /// It was cancelled before it began.
  bool is_cancelled() const { return cancelled_; }

 private:
  TasksPtr tasks_;
  bool cancelled_ = false;
};
ErrorInfo task_cancelled(std::string_view name);
std::shared_ptr<CallState> submit(ProcessGate& gate, std::uint64_t function, std::string_view name,
                                  CallBody args, const TaskOptions& options);
/// Of a task with so many results.
std::vector<objects::HandlePtr> compute(ProcessGate& gate, std::uint64_t function, std::string_view name,
                                        CallBody args, const TaskOptions& options, std::size_t results);
/// The answer of a task that computes objects. `is_pushed`: for another process.
Outcome computed_here(std::span<const wire::ByteView> objects, bool is_pushed);
/// Objects that this worker owns, and a task's answer refers to, get an owner that does not end with it.
void leave_objects(detail::EncodedAnswer& answer);

}  // namespace tasks

namespace detail {

template <class R, class... A>
struct MethodTraits<R (*)(A...)> : MethodTraits<R (tasks::Runner::*)(A...)> {};
template <class R, class... A>
struct MethodTraits<R (*)(A...) noexcept> : MethodTraits<R (*)(A...)> {};

template <class T>
inline constexpr bool kIsReference = false;
template <class T>
inline constexpr bool kIsReference<ObjectRef<T>> = true;

/// The objects that what a task returns becomes: one, or of a std::tuple or std::pair one for each value.
template <class A>
struct Results {
  using References = ObjectRef<A>;
  static constexpr std::size_t kCount = 1;
  static constexpr bool kAreValues = !kIsReference<A>;
  static References of(const std::vector<objects::HandlePtr>& handles) { return References(handles[0]); }
  template <class Answer, class Use>
  static Outcome use(const Answer& answer, Use use) {
    return use(answer);
  }
};
template <class First, class... More>
struct Results<std::tuple<First, More...>> {
  using References = std::tuple<ObjectRef<First>, ObjectRef<More>...>;
  static constexpr std::size_t kCount = 1 + sizeof...(More);
  static constexpr bool kAreValues = !kIsReference<First> && (!kIsReference<More> && ...);
  static References of(const std::vector<objects::HandlePtr>& handles) {
    return of(handles, std::index_sequence_for<First, More...>());
  }
  template <std::size_t... I>
  static References of(const std::vector<objects::HandlePtr>& handles, std::index_sequence<I...>) {
    return References(std::tuple_element_t<I, References>(handles[I])...);
  }
  template <class Answer, class Use>
  static Outcome use(const Answer& answer, Use use) {
    return std::apply(use, answer);
  }
};
template <class First, class Second>
struct Results<std::pair<First, Second>> : Results<std::tuple<First, Second>> {};

/// A value as its object holds it; `encoded` has the bytes if the value does not.
template <class A>
wire::ByteView object_bytes(const A& value, wire::Bytes& encoded) {
  if constexpr (kIsNumbers<A>) {
    return std::as_bytes(std::span(value));
  } else {
    encoded = wire::encode(value);
    return encoded;
  }
}

/// A function in the registry, as a method of what runs tasks.
template <auto F>
struct TaskEntry {
  using Traits = MethodTraits<decltype(F)>;
  using Return = typename Traits::Return;
  using Answer = typename AnswerOf<Return>::type;
  static_assert(std::is_same_v<Answer, std::decay_t<Return>>,
                "submit<&function>: a task returns its value, not a Future: it may wait for what it needs");
  static constexpr std::string_view kName = method_name<F>();
  static constexpr std::uint64_t kId =
      signature_hash(method_signature<F>()) ^ signature_hash(type_signature<decltype(F)>());

  /// Of the same function where its answer becomes an object, or several.
  static constexpr std::uint64_t kObjectId = kId ^ signature_hash("as an object");

  template <class A>
  static Outcome as_objects(const A& answer, bool is_pushed) {
    return Results<A>::use(answer, [is_pushed](const auto&... value) {
      std::array<wire::Bytes, sizeof...(value)> encoded;
      std::array<wire::ByteView, sizeof...(value)> objects;
      std::size_t i = 0;
      ((objects[i] = object_bytes(value, encoded[i]), ++i), ...);
      return tasks::computed_here(objects, is_pushed);
    });
  }
  static void invoke(void* runner, wire::ByteView bytes, Responder responder) {
    run<false>(runner, bytes, std::move(responder));
  }
  static void compute(void* runner, wire::ByteView bytes, Responder responder) {
    run<true>(runner, bytes, std::move(responder));
  }
  /// Without a runner it runs in the process that submitted it.
  template <bool kAsObject>
  static void run(void* runner, wire::ByteView bytes, Responder responder) {
    std::optional<tasks::PushedTask> pushed;
    if (runner != nullptr) pushed.emplace(bytes);
    if (pushed && pushed->is_cancelled()) return responder.fail(tasks::task_cancelled(kName));
    try {
      auto args = decode_arguments<typename Traits::Arguments>(bytes, kName);
      if (!args) return responder.fail(std::move(args).error());
      tasks::run_body([&] {
        const auto call = [&]() -> Return {
          const ForkScope scope(kName);
          return std::apply([](auto&&... arg) -> Return { return F(std::forward<decltype(arg)>(arg)...); },
                            *std::move(args));
        };
        if constexpr (std::is_void_v<Return>) {
          call();
          responder.answer({});
        } else if constexpr (kAsObject) {
          responder.outcome(as_objects(call(), runner != nullptr));
        } else if constexpr (kIsCountAndBytes<Answer>) {
          give_answer<Answer>(call(), responder);
        } else {
          EncodedAnswer answer = encode_answer<Answer>(call());
          if (runner != nullptr && !answer.refers_to.empty()) tasks::leave_objects(answer);
          std::move(answer).give(std::move(responder));
        }
      });
    } catch (...) {
      responder.fail(describe_exception(kName));
    }
  }
  static inline const bool registered =
      Registry::instance().add_method(kId, {std::string(kName), kClassId<tasks::Runner>, &invoke});
  static inline const bool object_registered =
      Registry::instance().add_method(kObjectId, {std::string(kName), kClassId<tasks::Runner>, &compute});
};

}  // namespace detail

/// In a task: whether whoever submitted it does not want it any more (Future::cancel). One that takes long
/// looks now and then, and returns. False elsewhere.
bool is_cancelled();

namespace tasks {

/// submit<&function>(arguments...) of a class that derives from this and has `run<F>(CallBody)`.
template <class Derived>
class Submits {
  template <auto F, std::size_t I>
  using At = detail::ArgumentOf<F, I>;

 public:
  /// Runs a function of the program in a worker of the cluster and gives a Future of what it returns.
  /// Arguments are copied, or given by an ObjectRef of the parameter's type (of std::vector<E> for a
  /// View<E>). Waits while 262,144 tasks, or 256 MiB of arguments, wait for workers. The Future fails with
  /// what the function threw, or ActorDied when worker after worker died of it.
  // clang-format off
  template <auto F> requires detail::Takes<F, 0> auto submit() const { return start<F>(); }
  template <auto F> requires detail::Takes<F, 1> auto submit(At<F, 0> a) const { return start<F>(a); }
  template <auto F> requires detail::Takes<F, 2> auto submit(At<F, 0> a, At<F, 1> b) const { return start<F>(a, b); }
  template <auto F> requires detail::Takes<F, 3> auto submit(At<F, 0> a, At<F, 1> b, At<F, 2> c) const { return start<F>(a, b, c); }
  template <auto F> requires detail::Takes<F, 4> auto submit(At<F, 0> a, At<F, 1> b, At<F, 2> c, At<F, 3> d) const { return start<F>(a, b, c, d); }
  template <auto F> requires detail::Takes<F, 5> auto submit(At<F, 0> a, At<F, 1> b, At<F, 2> c, At<F, 3> d, At<F, 4> e) const { return start<F>(a, b, c, d, e); }
  template <auto F> requires detail::Takes<F, 6> auto submit(At<F, 0> a, At<F, 1> b, At<F, 2> c, At<F, 3> d, At<F, 4> e, At<F, 5> f) const { return start<F>(a, b, c, d, e, f); }
  // clang-format on

  /// The same, and gives a reference to what the function returns: a value that stays on the node where it
  /// was computed. Give it to other tasks and calls, or get() it, which throws what the function threw. A
  /// task that reads it begins once it is there. When it is lost with its node or process it is computed
  /// again, max_retries times, from arguments that are computed again, too, if they are lost; else ObjectLost
  /// says why not. Of a function that returns a std::tuple or std::pair, a std::tuple of references: values
  /// that live, travel and are lost each by itself, and are computed again together.
  // clang-format off
  template <auto F> requires detail::Takes<F, 0> auto compute() const { return begin<F>(); }
  template <auto F> requires detail::Takes<F, 1> auto compute(At<F, 0> a) const { return begin<F>(a); }
  template <auto F> requires detail::Takes<F, 2> auto compute(At<F, 0> a, At<F, 1> b) const { return begin<F>(a, b); }
  template <auto F> requires detail::Takes<F, 3> auto compute(At<F, 0> a, At<F, 1> b, At<F, 2> c) const { return begin<F>(a, b, c); }
  template <auto F> requires detail::Takes<F, 4> auto compute(At<F, 0> a, At<F, 1> b, At<F, 2> c, At<F, 3> d) const { return begin<F>(a, b, c, d); }
  template <auto F> requires detail::Takes<F, 5> auto compute(At<F, 0> a, At<F, 1> b, At<F, 2> c, At<F, 3> d, At<F, 4> e) const { return begin<F>(a, b, c, d, e); }
  template <auto F> requires detail::Takes<F, 6> auto compute(At<F, 0> a, At<F, 1> b, At<F, 2> c, At<F, 3> d, At<F, 4> e, At<F, 5> f) const { return begin<F>(a, b, c, d, e, f); }
  // clang-format on
  template <auto F, class... Args>
  requires(!detail::Takes<F, sizeof...(Args)> || (sizeof...(Args) > 6)) void submit(Args&&...) const {
    static_assert(
        !sizeof(Derived),
        "submit<&function>(args...): pass one argument for every parameter of the function, six at most");
  }

 private:
  template <auto F, class... P>
  auto begin(const Argument<P>&... argument) const {
    using Entry = detail::TaskEntry<F>;
    static_assert(!std::is_void_v<typename Entry::Answer>,
                  "compute<&function>: it returns nothing: submit it");
    static_assert(detail::Results<typename Entry::Answer>::kAreValues,
                  "compute<&function>: it returns a reference already: submit it");
    (void)&Entry::object_registered;
    const auto& self = static_cast<const Derived&>(*this);
    ProcessGate& gate = self.process();
    using Results = detail::Results<typename Entry::Answer>;
    return Results::of(
        tasks::compute(gate, Entry::kObjectId, Entry::kName,
                       detail::encode_call(&gate, wire::kTaskArgumentBound, Entry::kName, argument...),
                       self.task_options(), Results::kCount));
  }
  template <auto F, class... P>
  auto start(const Argument<P>&... argument) const {
    using Entry = detail::TaskEntry<F>;
    (void)&Entry::registered;
    const auto& self = static_cast<const Derived&>(*this);
    ProcessGate& gate = self.process();
    return Future<typename Entry::Answer>(
        tasks::submit(gate, Entry::kId, Entry::kName,
                      detail::encode_call(&gate, wire::kTaskArgumentBound, Entry::kName, argument...),
                      self.task_options()),
        &gate);
  }
};

/// What Session::with gives.
class Submitter : public Submits<Submitter> {
 public:
  Submitter(ProcessGate& gate, const TaskOptions& options) : gate_(&gate), options_(options) {}
  ProcessGate& process() const { return *gate_; }
  const TaskOptions& task_options() const { return options_; }

 private:
  ProcessGate* gate_;
  TaskOptions options_;
};

}  // namespace tasks
}  // namespace troupe
