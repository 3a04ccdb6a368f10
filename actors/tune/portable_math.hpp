/// exp and log by additions, multiplications and one division alone, so that every machine draws the same
/// numbers: the C library's differ in the last bit between processors. Right to two units in the last place.
#pragma once

namespace troupe::tune {

double portable_exp(double x);
double portable_log(double x);  ///< REQUIRES: x > 0, finite and no denormal

}  // namespace troupe::tune
