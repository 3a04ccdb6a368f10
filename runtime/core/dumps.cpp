#include "runtime/core/dumps.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/ids.hpp"
#include "runtime/core/log.hpp"

namespace troupe {
namespace {

constexpr int kMostFrames = 64;
/// The handler, and the frame that the kernel makes for it.
constexpr int kOwnFrames = 2;

/// Of one thread at a time. `state` says whose turn it is: the handler writes the frames when it is asked for
/// them, and is too late once the asker has gone on.
struct Capture {
  enum State : int { kIdle, kAsked, kWriting, kDone };
  std::atomic<int> state{kIdle};
  std::atomic<pid_t> of{0};
  std::array<void*, kMostFrames> frames{};
  int count = 0;
};
/// Never freed: a handler that is stuck may go on with one that was given up.
std::atomic<Capture*> current{nullptr};
/// What the signal did before; set before our handler is there.
struct sigaction others_handler {};
/// What a signal of ours carries.
constexpr int kOurs = 0x74727065;

int dump_signal() {
  return SIGRTMAX - 3;
}

/// A signal of somebody else's goes to whose it was.
void take_stack(int signal, siginfo_t* info, void* context) {
  const int before = errno;
  Capture& capture = *current.load();
  int asked = Capture::kAsked;
  const bool is_ours = info->si_code == SI_QUEUE && info->si_value.sival_int == kOurs;
  if (!is_ours) {
    if ((others_handler.sa_flags & SA_SIGINFO) != 0) {
      others_handler.sa_sigaction(signal, info, context);
    } else if (others_handler.sa_handler != SIG_DFL && others_handler.sa_handler != SIG_IGN) {
      others_handler.sa_handler(signal);
    }
  } else if (capture.of == static_cast<pid_t>(::syscall(SYS_gettid)) &&
             capture.state.compare_exchange_strong(asked, Capture::kWriting)) {
    capture.count = ::backtrace(capture.frames.data(), kMostFrames);
    capture.state = Capture::kDone;
  }
  errno = before;
}

bool send_ours(pid_t thread) {
  siginfo_t info{};
  info.si_signo = dump_signal();
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = kOurs;
  return ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread, dump_signal(), &info) == 0;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct ThreadStatus {
  std::string name, state;
  bool takes_signal = false;
};
ThreadStatus status_of(const std::string& folder) {
  ThreadStatus status;
  std::ifstream file(folder + "/status");
  for (std::string line; std::getline(file, line);) {
    const auto value = [&] { return line.substr(std::min(line.find('\t') + 1, line.size())); };
    if (line.starts_with("Name:")) status.name = value();
    if (line.starts_with("State:")) status.state = value();
    if (line.starts_with("SigBlk:")) {
      const auto blocked = std::strtoull(value().c_str(), nullptr, 16);
      status.takes_signal = (blocked >> (dump_signal() - 1) & 1) == 0;
    }
  }
  return status;
}

/// What dladdr calls the program by is what it was started as, which need be no file.
std::string name_of_file(const char* file) {
  std::filesystem::path path = file == nullptr ? "?" : file;
  std::error_code ignored;
  if (!path.has_parent_path()) path = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return path.filename().string();
}

std::string describe(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0) return "?";
  const auto offset = [&](const void* from) {
    return "+0x" + to_hex(static_cast<std::uint64_t>(static_cast<const char*>(address) -
                                                     static_cast<const char*>(from)));
  };
  const std::string at = name_of_file(info.dli_fname) + offset(info.dli_fbase);
  if (info.dli_sname == nullptr) return at;
  int status = 0;
  char* const readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 && readable != nullptr ? readable : info.dli_sname;
  std::free(readable);  // NOLINT: it was malloc'ed
  return name + " (" + at + ")";
}

enum class Answer {
  kTaken,  ///< the current capture has its frames
  kGone,   ///< there is no such thread any more
  kLate,   ///< it may still take the signal
};
Answer take_stack_of(pid_t thread, Duration within) {
  Capture& capture = *current.load();
  capture.of = thread;
  capture.state = Capture::kAsked;
  if (!send_ours(thread)) return Answer::kGone;
  const MonotonicClock clock;
  const auto wait = [&] {
    for (const Instant until = clock.now() + within; capture.state != Capture::kDone && clock.now() < until;)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    return capture.state == Capture::kDone;
  };
  if (wait()) return Answer::kTaken;
  int asked = Capture::kAsked;
  if (capture.state.compare_exchange_strong(asked, Capture::kIdle)) return Answer::kLate;
  if (wait()) return Answer::kTaken;
  current = new Capture;  // its handler is stuck with the old one
  return Answer::kLate;
}

std::vector<Dumper>& dumpers() {
  static auto* const all = new std::vector<Dumper>;
  return *all;
}
std::mutex& dumpers_mutex() {
  static auto* const one = new std::mutex;
  return *one;
}

}  // namespace

void add_dumper(Dumper dumper) {
  const std::lock_guard lock(dumpers_mutex());
  auto& all = dumpers();
  if (std::find(all.begin(), all.end(), dumper) == all.end()) all.push_back(dumper);
}

std::string describe_threads(Duration each) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::array<void*, 1> ignored{};
  ::backtrace(ignored.data(), 1);  // loads what it needs, which no handler may
  static bool stays = false;       // under one_at_a_time, as is others_handler
  if (current.load() == nullptr) current = new Capture;
  struct sigaction take {
  }, before{};
  ::sigaction(dump_signal(), nullptr, &before);
  const bool is_there = (before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction == take_stack;
  if (!is_there) others_handler = before;
  take.sa_sigaction = take_stack;
  take.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(dump_signal(), &take, nullptr);
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error))
    threads.push_back(static_cast<pid_t>(std::strtol(entry.path().filename().c_str(), nullptr, 10)));
  std::sort(threads.begin(), threads.end());
  std::string text;
  for (const pid_t thread : threads) {
    if (thread == self) continue;
    const std::string folder = "/proc/self/task/" + std::to_string(thread);
    const ThreadStatus status = status_of(folder);
    const std::string wait = first_line(folder + "/wchan");
    text += "thread " + std::to_string(thread) + " \"" + status.name + "\" " + status.state +
            (wait.empty() || wait == "0" ? "" : ", waits in " + wait) + "\n";
    const Answer answer = status.takes_signal ? take_stack_of(thread, each) : Answer::kGone;
    stays = stays || answer == Answer::kLate;
    const Capture& capture = *current.load();
    if (!status.takes_signal) {
      text += "  (it blocks signals: a helper of troupe's own, as a rule)\n";
    } else if (answer != Answer::kTaken) {
      text += "  (it did not answer)\n";
    } else {
      for (int i = std::min(kOwnFrames, capture.count); i < capture.count; ++i)
        text += "  " + describe(capture.frames[static_cast<std::size_t>(i)]) + "\n";
    }
  }
  // A late signal must neither end the process nor reach another's handler: ours stays, and hands on what is
  // not ours.
  if (!stays && others_handler.sa_handler != SIG_DFL) ::sigaction(dump_signal(), &others_handler, nullptr);
  return text;
}

void dump_process(const std::string& folder) {
  const std::string path = folder + "/stacks-" + std::to_string(::getpid()) + ".txt";
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char time[40] = "";
  if (::localtime_r(&now, &parts) != nullptr) std::strftime(time, sizeof time, "%F %T%z", &parts);
  std::ofstream file(path);
  file << "process " << ::getpid() << " at " << time << "\n" << describe_threads();
  if (!file.flush()) log(LogLevel::kError, "cannot write " + path);
  std::vector<Dumper> all;
  {
    const std::lock_guard lock(dumpers_mutex());
    all = dumpers();
  }
  for (const Dumper dumper : all) dumper(folder);
}

}  // namespace troupe
