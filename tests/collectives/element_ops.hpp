/// One element of any dtype, with the operation as a value: for tests.
#pragma once

#include "collectives/native/kernel_elements.hpp"

namespace troupe::collectives::testing {

/// a op b. REQUIRES: the dtype reduces by it.
template <class Element>
typename Element::Stored combine(ReduceOp op, typename Element::Stored a, typename Element::Stored b) {
  typename Element::Stored out{};
  kernel::with_op<Element>(op, [&](auto how) { out = Element::apply(how, a, b); });
  return out;
}

/// A value times `factor`. REQUIRES: premul-sum is for the dtype.
template <class Element>
typename Element::Stored scale(typename Element::Stored stored, double factor) {
  if constexpr (std::is_same_v<Element, kernel::Bool>)
    return stored;
  else
    return Element::scale(stored, static_cast<typename Element::Value>(factor));
}

/// A value over `divisor`. REQUIRES: avg is for the dtype.
template <class Element>
typename Element::Stored divide(typename Element::Stored stored, int divisor) {
  if constexpr (!Element::kIsFloat)
    return stored;
  else
    return Element::divide(stored, static_cast<typename Element::Value>(divisor));
}

}  // namespace troupe::collectives::testing
