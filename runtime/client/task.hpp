/// Task<T>: what a method of an actor returns that waits by co_await. While it waits, the actor's mailbox
/// goes on.
///
///   troupe::Task<double> average() {
///     std::vector<double> parts = co_await troupe::when_all(asked);
///     co_return std::reduce(parts.begin(), parts.end()) / double(parts.size());
///   }
///
/// A caller of it gets a Future<T>. Actors alone run Tasks: in a main program use Future::get.
#pragma once

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/client/future.hpp"
#include "runtime/host/task_frames.hpp"

namespace troupe {

template <class T = void>
class Task;

namespace detail {

[[noreturn]] void throw_empty_task();
[[noreturn]] void throw_own_answer();

template <class T>
class FutureAwaiter {
 public:
  explicit FutureAwaiter(Future<T> future) : future_(std::move(future)) {}
  bool await_ready() const { return future_.ready() && future_.state()->is_here(); }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> awaiting) {
    is_own_ = !awaiting.promise().call->wait_for(future_.state());
    return !is_own_;
  }
  T await_resume() {
    if (is_own_) throw_own_answer();
    return future_.answer();
  }

 private:
  bool is_own_ = false;  ///< it waits for the answer of the call that awaits it
  Future<T> future_;
};

/// Owns the frame while it is awaited.
template <class T>
class TaskAwaiter {
 public:
  using Promise = typename Task<T>::promise_type;
  explicit TaskAwaiter(std::coroutine_handle<Promise> task) : frame_(task), promise_(&task.promise()) {}
  TaskAwaiter(const TaskAwaiter&) = delete;
  TaskAwaiter& operator=(const TaskAwaiter&) = delete;
  ~TaskAwaiter() {
    if (frame_) frame_.destroy();
  }
  bool await_ready() const noexcept { return false; }
  template <class Awaiting>
  void await_suspend(std::coroutine_handle<Awaiting> awaiting) {
    promise_->owner = &frame_;
    awaiting.promise().call->enter(*promise_);
  }
  T await_resume() { return promise_->take(); }

 private:
  std::coroutine_handle<> frame_;
  Promise* promise_;
};

template <class T>
inline constexpr bool kAlwaysFalse = false;

/// What all coroutines of an actor share: they start when awaited, and go on in TaskCall's loop.
struct TaskPromiseBase : TaskPromise {
  struct Final {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      ended.promise().call->leave();
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  Final final_suspend() const noexcept { return {}; }

  template <class T>
  FutureAwaiter<T> await_transform(Future<T> future) {
    return FutureAwaiter<T>(std::move(future));
  }
  template <class T>
  TaskAwaiter<T> await_transform(Task<T>&& task) {
    if (!task.frame_) throw_empty_task();
    return TaskAwaiter<T>(std::exchange(task.frame_, nullptr));
  }
  template <class Other>
  std::suspend_never await_transform(const Other&) {
    static_assert(kAlwaysFalse<Other>,
                  "co_await in a troupe::Task: give it a Future (of a call, when_all, when_any) or "
                  "std::move a Task");
    return {};
  }
};

template <class T>
struct TaskResult : TaskPromiseBase {
  std::optional<T> value;
  std::exception_ptr error;
  template <class Value = T>
  requires std::is_convertible_v<Value&&, T>
  void return_value(Value&& from) { value.emplace(std::forward<Value>(from)); }
  void unhandled_exception() { error = std::current_exception(); }
  T take() {
    if (error) std::rethrow_exception(error);
    return *std::move(value);
  }
};
template <>
struct TaskResult<void> : TaskPromiseBase {
  std::exception_ptr error;
  void return_void() const {}
  void unhandled_exception() { error = std::current_exception(); }
  void take() const {
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace detail

/// Runs when it is awaited, or when the method that returned it was called through a handle; arguments of
/// such a call live as long as it does. It may co_await a Future, which gives the answer or throws as get()
/// does, and another Task, by `co_await other()`. The actor's state may have changed meanwhile. An actor that
/// ends destroys what still waits: its callers get ActorDied. Move-only.
template <class T>
class [[nodiscard]] Task {
 public:
  using value_type = T;
  struct promise_type : detail::TaskResult<T> {
    Task get_return_object() {
      const auto handle = std::coroutine_handle<promise_type>::from_promise(*this);
      this->frame = handle;
      return Task(handle);
    }
  };

  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~Task() {
    if (frame_) frame_.destroy();
  }

 private:
  friend struct detail::TaskPromiseBase;
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}

  std::coroutine_handle<promise_type> frame_;
};

namespace detail {

/// The outermost frame of a call: it holds the arguments and answers.
struct TaskRoot {
  struct promise_type : TaskPromiseBase {
    TaskRoot get_return_object() {
      frame = std::coroutine_handle<promise_type>::from_promise(*this);
      return {this};
    }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // it catches all itself
  };
  TaskPromise* promise;
};

/// Runs `task` in the actor whose turn it is.
void run_task(TaskRoot task);
/// Throws BadConfig in an actor of which several threads run methods.
void check_runs_tasks();

}  // namespace detail
}  // namespace troupe
