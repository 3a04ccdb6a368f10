#include "scheduler/cli/serving_programs.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>

#include "runtime/link/socket/named_socket.hpp"

namespace troupe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

std::string socket_name(unsigned user) {
  return "troupe-serve-" + std::to_string(user) + "-";
}

}  // namespace

std::vector<int> serving_pids(std::string_view sockets, unsigned user) {
  const std::string name = " @" + socket_name(user);
  std::vector<int> pids;
  while (!sockets.empty()) {
    const std::string_view line = sockets.substr(0, sockets.find('\n'));
    sockets.remove_prefix(std::min(line.size() + 1, sockets.size()));
    const std::size_t at = line.find(name);
    if (at == std::string_view::npos) continue;
    const std::string_view number = line.substr(at + name.size());
    int pid = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), pid);
    if (read.ec == std::errc() && read.ptr == number.data() + number.size() && pid > 0) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());  // an open connection has a line of the same name
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

std::vector<int> serving_pids() {
  std::ostringstream text;
  text << std::ifstream("/proc/net/unix").rdbuf();
  return serving_pids(text.str(), ::geteuid());
}

Result<Json> ask_program(int pid, const Json& question, Duration timeout) {
  const std::string who = "process " + std::to_string(pid);
  const ErrorInfo gone{ErrorCode::kUnavailable, who + " does not answer", "it has ended, or is ending",
                       "see troupe serve list"};
  auto link = connect_by_name(socket_name(::geteuid()) + std::to_string(pid));
  if (!link) return gone;
  const std::string text = question.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (::send(link->fd(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return gone;
  pollfd wait{link->fd(), POLLIN, 0};
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  int ready = 0;
  while ((ready = ::poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(limit, 1 << 30)))) < 0 &&
         errno == EINTR) {
  }
  if (ready == 0)
    return ErrorInfo{ErrorCode::kTimeout, who + " has not answered",
                     "it was asked " + std::to_string(limit / 1000) + " s ago, and may still be at it",
                     "see troupe serve status, or its output"};
  std::string answer(kMostBytes, '\0');
  const ssize_t got = ::recv(link->fd(), answer.data(), answer.size(), 0);
  if (got <= 0) return gone;
  const Json json =
      Json::parse(std::string_view(answer).substr(0, static_cast<std::size_t>(got)), nullptr, false);
  if (!json.is_object())
    return ErrorInfo{ErrorCode::kBadInput, "the answer of " + who + " is not understood", "it is no object",
                     "use the troupe of the same version"};
  const auto error = json.find("error");
  if (error == json.end()) return json;
  const auto part = [&](const char* key) {
    const auto at = error->is_object() ? error->find(key) : error->end();
    return error->is_object() && at != error->end() && at->is_string() ? at->get<std::string>()
                                                                       : std::string();
  };
  return ErrorInfo{ErrorCode::kRefused, part("what"), part("why"), part("todo")};
}

}  // namespace troupe::cli
