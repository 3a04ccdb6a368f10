/// troupe::Error and its subclasses: what the public API throws. The message of each says what happened, why,
/// and what to do.
#pragma once

#include "runtime/core/error.hpp"
