#include "runtime/core/fork_guard.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "runtime/core/error.hpp"

namespace troupe {
namespace {

/// How many forks lie between this process and the one that was executed.
std::atomic<std::uint32_t> forks{0};

std::uint32_t count_forks() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : forks_(count_forks()) {}

bool ForkGuard::is_in_child() const {
  return forks.load(std::memory_order_relaxed) != forks_;
}

void ForkGuard::check(const char* what) const {
  if (!is_in_child()) return;
  throw BadConfig(std::string("a forked process used the ") + what + " of its parent",
                  "it leads through threads, links and memory that are its parent's",
                  "exec a program after fork(), or call troupe only in the process that called init");
}

void ForkScope::end_child() const {
  std::fprintf(
      stderr,
      "troupe: process %d was forked in %.*s and came back from it, where its parent goes on: it ends "
      "here (end it by _exit, or exec a program)\n",
      static_cast<int>(::getpid()), static_cast<int>(where_.size()), where_.data());
  ::_exit(1);
}

}  // namespace troupe
