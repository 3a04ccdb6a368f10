/// printf into a string, for reasons.
#pragma once

#include <string>

namespace troupe::tune {

[[gnu::format(printf, 1, 2)]] std::string words(const char* format, ...);

}  // namespace troupe::tune
