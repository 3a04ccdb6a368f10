#include "runtime/core/process_title.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>

namespace troupe {
namespace {

constexpr std::string_view kPrefix = "troupe: ";
/// That the kernel knows of. Its last byte is no zero: then the kernel reads up to the first zero alone, so
/// that the text may change without a call.
constexpr std::size_t kBytes = 1024;
constexpr std::size_t kLongestText = 200;

struct Title {
  std::mutex mutex;
  std::string name, work;                                  ///< guarded by mutex, as all below
  std::vector<std::pair<std::string, std::string>> notes;  ///< in the order in which they came
  char* memory = nullptr;                                  ///< of kBytes
  bool is_refused = false;
};
Title& title() {
  static auto* const one = new Title;  // threads note things while the process exits
  return *one;
}

/// Of proc(5), by their numbers there.
std::vector<std::uint64_t> fields_of_stat() {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto name_ends = text.rfind(')');
  std::vector<std::uint64_t> fields(3);
  if (name_ends == std::string::npos || name_ends + 4 > text.size()) return fields;
  std::istringstream rest(text.substr(name_ends + 4));
  for (std::string word; rest >> word;) fields.push_back(std::strtoull(word.c_str(), nullptr, 10));
  // The state, field 3, is a letter: it was stepped over.
  fields.insert(fields.begin(), 0);
  return fields;
}

bool tell_kernel(const char* memory) {
  constexpr std::size_t kEnvEnd = 51;
  const auto f = fields_of_stat();
  if (f.size() <= kEnvEnd) return false;
  prctl_mm_map map{};
  map.start_code = f[26], map.end_code = f[27];
  map.start_data = f[45], map.end_data = f[46];
  map.start_brk = f[47], map.brk = reinterpret_cast<std::uintptr_t>(::sbrk(0));
  map.start_stack = f[28];
  map.arg_start = reinterpret_cast<std::uintptr_t>(memory), map.arg_end = map.arg_start + kBytes;
  map.env_start = f[50], map.env_end = f[51];
  map.exe_fd = ~std::uint32_t{0};
  return ::prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) == 0;
}

std::string clean(std::string_view text, bool is_word = false) {
  std::string one(text.substr(0, kLongestText));
  std::replace(one.begin(), one.end(), '\0', '?');
  if (is_word) std::replace(one.begin(), one.end(), ' ', '_');
  return one;
}

/// REQUIRES: the title's mutex is held.
void show(Title& t) {
  if (t.is_refused || t.name.empty()) return;
  std::string text = std::string(kPrefix) + t.name + (t.work.empty() ? "" : " of " + t.work);
  for (const auto& [key, value] : t.notes) {
    if (text.size() + key.size() + value.size() + 4 < kBytes) text += " " + key + "=" + value;
  }
  const bool is_new = t.memory == nullptr;
  if (is_new) {
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return void(t.is_refused = true);
    t.memory = static_cast<char*>(memory);
    t.memory[kBytes - 1] = '.';
  }
  std::memcpy(t.memory, text.c_str(), text.size() + 1);
  if (is_new) t.is_refused = !tell_kernel(t.memory);
}

}  // namespace

void name_process(std::string_view name) {
  Title& t = title();
  const std::lock_guard lock(t.mutex);
  t.name = clean(name);
  show(t);
}

void name_process_work(std::string_view work) {
  Title& t = title();
  const std::lock_guard lock(t.mutex);
  t.work = clean(work);
  t.notes.clear();
  show(t);
}

void note_process(std::string_view key, std::string_view value) {
  Title& t = title();
  const std::lock_guard lock(t.mutex);
  if (t.name.empty()) return;
  const auto at = std::find_if(t.notes.begin(), t.notes.end(), [&](const auto& n) { return n.first == key; });
  if (at == t.notes.end()) {
    t.notes.emplace_back(clean(key, true), clean(value, true));
  } else {
    at->second = clean(value, true);
  }
  show(t);
}

ProcessTitle parse_process_title(std::string_view arguments) {
  ProcessTitle read;
  std::string_view text = arguments.substr(0, arguments.find('\0'));
  if (!text.starts_with(kPrefix)) return read;
  text.remove_prefix(kPrefix.size());
  for (std::size_t blank; (blank = text.rfind(' ')) != std::string_view::npos; text = text.substr(0, blank)) {
    const std::string_view word = text.substr(blank + 1);
    const auto equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0) break;
    read.notes.emplace(read.notes.begin(), word.substr(0, equals), word.substr(equals + 1));
  }
  read.title = text;
  return read;
}

ProcessTitle read_process_title(long pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  return parse_process_title(std::string((std::istreambuf_iterator<char>(file)), {}));
}

}  // namespace troupe
