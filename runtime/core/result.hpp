/// Result<T>: a value or an ErrorInfo. What every decoder of outside bytes returns.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe {

/// A value or the reason why there is none. `value()` throws the typed exception of the error, so that a
/// shell which wants exceptions writes `decode(bytes).value()`.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
  Result(ErrorInfo error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  /// REQUIRES: ok().
  T& operator*() & {
    TROUPE_ASSERT(ok(), "read of a failed Result");
    return *std::get_if<0>(&state_);
  }
  const T& operator*() const& {
    TROUPE_ASSERT(ok(), "read of a failed Result");
    return *std::get_if<0>(&state_);
  }
  T&& operator*() && {
    TROUPE_ASSERT(ok(), "read of a failed Result");
    return std::move(*std::get_if<0>(&state_));
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

  /// REQUIRES: !ok().
  const ErrorInfo& error() const& {
    TROUPE_ASSERT(!ok(), "error of a good Result");
    return *std::get_if<1>(&state_);
  }
  ErrorInfo&& error() && {
    TROUPE_ASSERT(!ok(), "error of a good Result");
    return std::move(*std::get_if<1>(&state_));
  }

  /// The value, or throws the exception that belongs to the error.
  T value() && {
    if (!ok()) throw_error(std::move(*this).error());
    return *std::move(*this);
  }
  const T& value() const& {
    if (!ok()) throw_error(error());
    return **this;
  }
  T value_or(T otherwise) && { return ok() ? *std::move(*this) : std::move(otherwise); }

 private:
  std::variant<T, ErrorInfo> state_;
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(ErrorInfo error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const noexcept { return !error_; }
  explicit operator bool() const noexcept { return ok(); }
  const ErrorInfo& error() const {
    TROUPE_ASSERT(!ok(), "error of a good Result");
    return *error_;
  }
  void value() const {
    if (error_) throw_error(*error_);
  }

 private:
  std::optional<ErrorInfo> error_;
};

}  // namespace troupe
