#include "scheduler/init/cluster_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRunSuffix = ".run";
constexpr Duration kOthersAsk = std::chrono::seconds(20);

ErrorInfo knows_no_cluster(const std::string& folder) {
  return {ErrorCode::kRefused, "cannot reach a cluster with the keys in " + folder,
          "no cluster was started or joined from there",
          "start one (troupe start --head), or join one: troupe start --address HOST:PORT --token-file FILE"};
}

}  // namespace

Result<RunLock> RunLock::take(const std::string& path) {
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return io_error("cannot write " + path, errno, "make its folder writable");
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      std::string pid;
      std::getline(std::ifstream(path) >> std::ws, pid);
      return ErrorInfo{ErrorCode::kRefused, "cannot start a second one from this folder",
                       "process " + (pid.empty() ? "?" : pid) + " holds " + path,
                       "end it with troupe stop, or choose another --folder"};
    }
    struct stat info {};
    // Its former holder may have removed the file between our open and our lock.
    if (::fstat(fd.get(), &info) == 0 && info.st_nlink == 0) continue;
    RunLock lock(std::move(fd), path);
    if (auto written = lock.write_pid(); !written) return written.error();
    return lock;
  }
}

RunLock::~RunLock() {
  if (fd_) ::unlink(path_.c_str());
}

Result<void> RunLock::write_pid() {
  const std::string text = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd_.get(), 0) != 0 ||
      ::pwrite(fd_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return io_error("cannot write " + path_, errno, "make room on the disk");
  }
  return {};
}

std::string ClusterFolder::default_path() {
  if (const char* folder = std::getenv("TROUPE_FOLDER"); folder != nullptr && *folder != '\0') return folder;
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return std::string(state) + "/troupe";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.local/state/troupe";
  throw BadConfig("cannot find the folder of the cluster's keys",
                  "none of TROUPE_FOLDER, XDG_STATE_HOME and HOME is set", "give --folder DIR");
}

Result<ClusterFolder> ClusterFolder::find(const std::string& path) {
  const std::string chosen = path.empty() ? default_path() : path;
  std::error_code error;
  if (!fs::exists(chosen, error) && !error) return knows_no_cluster(chosen);
  return open(chosen);
}

Result<ClusterFolder> ClusterFolder::open(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path.empty() ? default_path() : path, error).lexically_normal();
  fs::create_directories(absolute.parent_path(), error);
  if (error)
    return io_error("cannot create " + absolute.parent_path().string(), error.value(),
                    "choose another --folder");
  auto keys = KeyFolder::open(absolute.string());
  if (!keys) return keys.error();
  return ClusterFolder(absolute.string(), *std::move(keys));
}

Result<void> ClusterFolder::save_head(const Endpoint& address, const PublicKey& key) const {
  if (auto saved = keys_.save_public("head", key); !saved) return saved;
  const std::string text = to_string(address) + "\n";
  std::string known;
  if (std::getline(std::ifstream(path_ + "/address"), known) && known + "\n" == text) return {};
  const std::string temporary = path_ + "/.address." + std::to_string(::getpid());
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), (path_ + "/address").c_str()) != 0) {
    const int why = errno;
    ::unlink(temporary.c_str());
    return io_error("cannot write " + path_ + "/address", why, "make room, and the folder writable");
  }
  return {};
}

std::optional<std::string> ClusterFolder::lost_of_head() const {
  const auto is_there = [this](const char* name) {
    std::error_code error;
    return fs::exists(path_ + "/" + name, error);
  };
  std::error_code error;
  const auto bytes = fs::file_size(path_ + "/store/troupe.db", error);
  const bool has_key = is_there("head.key"), has_file = !error, has_store = has_file && bytes > 0;
  // Whoever joins has the last two as well, and a start that failed may have left a key or a folder.
  const bool head_ran = (has_key || is_there("store")) && (is_there("head.pub") || is_there("address"));
  if (has_store ? has_key : !head_ran) return std::nullopt;
  constexpr const char* kNewKey =
      "another one is made, which no other machine knows: each must join again with a new token (troupe "
      "token), unless you stop this head and bring the file back from a copy";
  if (has_store) return "a head ran from " + path_ + ", and its head.key is missing: " + kNewKey;
  return "a head ran from " + path_ + ", and its store/troupe.db is " + (has_file ? "empty" : "missing") +
         ": it begins anew, without the jobs, queues and keys of other machines that it knew" +
         (has_key ? "" : "; its head.key is missing, too") +
         "; unless you stop this head and bring the file back from a copy, each machine must join again with "
         "a new token (troupe token)";
}

Result<HeadContact> ClusterFolder::contact(const std::optional<Endpoint>& address) const {
  const ErrorInfo unknown = knows_no_cluster(path_);
  auto head_key = keys_.load_public("head");
  if (!head_key) return head_key.error();
  if (!*head_key) return unknown;
  auto own = own_keys();
  if (!own) return own.error();
  if (address) return HeadContact{*address, **head_key, *own};
  std::string text;
  std::ifstream file(path_ + "/address");
  if (!std::getline(file, text)) return unknown;
  auto remembered = parse_endpoint(text);
  if (!remembered) return remembered.error();
  return HeadContact{*remembered, **head_key, *own};
}

Result<HeadContact> ClusterFolder::join(const Endpoint& address,
                                        const std::optional<JoinToken>& token) const {
  auto own = own_keys();
  if (!own) return own.error();
  const auto known = keys_.load_public("head");
  if (!known) return known.error();
  if (!token) {
    if (*known) return contact(address);
    return ErrorInfo{
        ErrorCode::kRefused, "cannot join the cluster at " + to_string(address),
        "the folder " + path_ + " has the keys of no cluster: none was started or joined from there",
        "print a join token on the head's machine (troupe token) and give it with --token-file"};
  }
  if (token->head.port != address.port) {
    return ErrorInfo{ErrorCode::kRefused, "cannot join the cluster at " + to_string(address),
                     "the token is for the head at " + to_string(token->head),
                     "give that address, or a token of this cluster"};
  }
  const HeadContact contact{address, token->head_key, *own};
  // A token that was used by this very folder: it is in already.
  const bool same_head = *known && **known == token->head_key;
  if (!same_head || !ask(contact, wire::StatusAsk{1}, std::chrono::seconds(5))) {
    JoinToken here = *token;
    here.head = address;
    if (auto done = enroll(here, *own, std::chrono::seconds(10)); !done) return done.error();
  }
  if (auto saved = save_head(address, token->head_key); !saved) return saved.error();
  return contact;
}

namespace {

/// Stands in the lock of those who ask: the head gave one of them no answer. Whoever waits for the lock
/// meanwhile need not find that out too, one after the other.
struct NoAnswer {
  std::uint64_t number = 0;  ///< random: tells one from the next
  std::string address;
  ErrorInfo error;
};
constexpr std::size_t kMostNoted = 4096;

std::optional<NoAnswer> read_note(const UniqueFd& lock) {
  wire::Bytes bytes(kMostNoted);
  const ssize_t got = ::pread(lock.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(got));
  auto note = wire::decode<NoAnswer>(bytes);
  return note ? std::optional(*std::move(note)) : std::nullopt;
}

/// REQUIRES: the lock is held. A note that is not whole does not decode, and is none.
void write_note(const UniqueFd& lock, const NoAnswer& note) {
  const auto bytes = wire::encode(note);
  [[maybe_unused]] const bool written =
      ::ftruncate(lock.get(), 0) == 0 && ::pwrite(lock.get(), bytes.data(), bytes.size(), 0) > 0;
}

}  // namespace

Result<wire::Bytes> ClusterFolder::ask(const HeadContact& head, const wire::Control& message,
                                       Duration timeout) const {
  const std::string path = path_ + "/ask.lock";
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return io_error("cannot write " + path, errno, "make the folder writable");
  const std::string address = to_string(head.address);
  const auto before = read_note(fd);
  const MonotonicClock clock;
  const Instant deadline = clock.now() + kOthersAsk;
  for (;;) {
    const bool is_mine = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    const auto note = read_note(fd);
    if (note && note->address == address && (!before || note->number != before->number)) return note->error;
    if (is_mine) break;
    if (clock.now() > deadline)
      return ErrorInfo{ErrorCode::kTimeout, "cannot ask the head", "others hold " + path, "try again"};
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  auto answer = ask_head(head, message, timeout);
  if (!answer && answer.error().code == ErrorCode::kTimeout)
    write_note(fd, {SystemRandom().next(), address, answer.error()});
  return answer;
}

Result<RunLock> ClusterFolder::lock(const std::string& name) const {
  return RunLock::take(path_ + "/" + name + std::string(kRunSuffix));
}

std::vector<RunningProcess> ClusterFolder::running() const {
  std::vector<RunningProcess> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(kRunSuffix)) continue;
    const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) continue;
    if (::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());  // its process crashed
      continue;
    }
    pid_t pid = -1;
    std::ifstream(entry.path()) >> pid;
    if (pid > 1) all.push_back({file.substr(0, file.size() - kRunSuffix.size()), pid});
  }
  return all;
}

}  // namespace troupe
