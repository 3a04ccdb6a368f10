// A program that is to run one trial of a sweep again.
#pragma once

#include <cstdlib>
#include <string>

namespace troupe::e2e {

/// TROUPE_TRIAL, for as long as it lives.
struct TrialAgain {
  explicit TrialAgain(const std::string& text) { ::setenv("TROUPE_TRIAL", text.c_str(), 1); }
  TrialAgain(const TrialAgain&) = delete;
  TrialAgain& operator=(const TrialAgain&) = delete;
  ~TrialAgain() { ::unsetenv("TROUPE_TRIAL"); }
};

}  // namespace troupe::e2e
