#include "runtime/core/ending.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstring>

namespace troupe {
namespace {

constexpr std::string_view kCode = "exit code ";
constexpr std::string_view kSignal = "killed by signal ";
constexpr std::string_view kLastLine = ", last line of its output: ";
constexpr std::string_view kLastLineOfAll = ", last line of all that its shared worker wrote: ";
constexpr std::string_view kOnOrder = " (its process: ";
constexpr std::size_t kMostLineBytes = 300;

int number_at(std::string_view text, std::size_t at) {
  int number = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), number);
  return number;
}

}  // namespace

std::string ended_with_code(int code) {
  return std::string(kCode) + std::to_string(code);
}

std::string ended_by_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return std::string(kSignal) + std::to_string(signal) +
         (name == nullptr ? "" : " (SIG" + std::string(name) + ")");
}

std::string ended_on_order(const std::string& why, const std::string& how) {
  return why + std::string(kOnOrder) + how + ")";
}

std::string with_last_line(const std::string& how, const std::string& line, bool is_shared) {
  return line.empty()
             ? how
             : how + std::string(is_shared ? kLastLineOfAll : kLastLine) + line.substr(0, kMostLineBytes);
}

bool ended_by_itself(std::string_view text) {
  text = text.substr(0, std::min(text.find(kLastLine), text.find(kLastLineOfAll)));
  if (const auto at = text.rfind(kSignal); at != std::string_view::npos) {
    constexpr std::array kOwn = {SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS};
    const int signal = number_at(text, at + kSignal.size());
    return std::find(kOwn.begin(), kOwn.end(), signal) != kOwn.end();
  }
  const auto at = text.rfind(kCode);
  if (at == std::string_view::npos) return false;
  const int code = number_at(text, at + kCode.size());
  constexpr int kBySignal = 128;  // a shell's way to say it
  // One that was told to end ends with 0; of itself that is its code's exit().
  return code == 0 ? text.find(kOnOrder) == std::string_view::npos : code < kBySignal;
}

}  // namespace troupe
