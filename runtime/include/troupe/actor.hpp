/// What code inside an actor needs: handles, futures, promises, and the actor's own context. A program's main
/// needs <troupe/session.hpp>, which includes this.
#pragma once

#include "runtime/client/session.hpp"
#include "troupe/error.hpp"
