#include "scheduler/init/program_end.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "runtime/core/error.hpp"
#include "runtime/host/this_thread.hpp"

namespace troupe {
namespace {

constexpr auto kEndsWithin = std::chrono::seconds(20);

struct ProgramEnd {
  std::mutex mutex;  ///< guards what follows
  std::condition_variable changed;
  int under_way = 0;
  bool has_come = false;
};
/// Never destroyed: sessions in global variables outlive most.
ProgramEnd& program_end() {
  static auto* const end = new ProgramEnd;
  return *end;
}

std::terminate_handler before = nullptr;
std::string* name_in_errors = nullptr;  // never destroyed: an error may be the last thing that happens

void say_uncaught() {
  // main() runs in the thread that has the process's number.
  if (const std::exception_ptr thrown = std::current_exception(); thrown && ::gettid() == ::getpid()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      std::fflush(stdout);  // of all files it would wait for a thread that reads stdin
      std::fprintf(stderr, "%s: %s\n", name_in_errors->c_str(), error.what());
      std::_Exit(1);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the former handler has it
    }
  }
  if (before != nullptr) before();
  std::abort();
}

void on_exit() {
  auto& end = program_end();
  std::unique_lock lock(end.mutex);
  const bool is_waited_for = this_thread.turn != nullptr || this_thread.may_not_wait;
  if (!is_waited_for) end.changed.wait_for(lock, kEndsWithin, [&] { return end.under_way == 0; });
  end.has_come = true;
}

}  // namespace

void watch_program_end() {
  static const bool watches = std::atexit(on_exit) == 0;
  static_cast<void>(watches);
}

void say_uncaught_errors(const std::string& program) {
  static const bool says = [&] {
    name_in_errors = new std::string(program);
    before = std::set_terminate(say_uncaught);
    return true;
  }();
  static_cast<void>(says);
}

bool is_program_ending() {
  const std::lock_guard lock(program_end().mutex);
  return program_end().has_come;
}

void detail::end_begins() {
  const std::lock_guard lock(program_end().mutex);
  ++program_end().under_way;
}

void detail::end_is_over() {
  const std::lock_guard lock(program_end().mutex);
  --program_end().under_way;
  program_end().changed.notify_all();
}

}  // namespace troupe
