#define CATCH_CONFIG_RUNNER
#include "tests/run_catch.hpp"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

namespace {

/// Of a case, against hangs. By hand: none.
unsigned most_seconds() {
  const char* given = std::getenv("TROUPE_CASE_SECONDS");
  return given == nullptr ? 0 : static_cast<unsigned>(std::atoi(given));
}

/// Ends the program at a case that hangs: Catch2 then prints its name, and ctest what was said before.
void on_alarm(int) {
  constexpr char kWhy[] = "this case takes too long:\n";
  (void)!::write(STDERR_FILENO, kWhy, sizeof kWhy - 1);
  std::abort();
}

/// Not inherited by what a case forks: an alarm is its process's own.
struct CaseAlarm : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    TestEventListenerBase::testCaseStarting(info);
    ::signal(SIGALRM, on_alarm);
    ::alarm(info.isHidden() ? 0 : most_seconds());
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ::alarm(0);
    TestEventListenerBase::testCaseEnded(stats);
  }
};
CATCH_REGISTER_LISTENER(CaseAlarm)

}  // namespace

int troupe::test::run_catch(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
