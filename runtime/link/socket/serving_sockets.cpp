#include "runtime/link/socket/serving_sockets.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "runtime/link/socket/descriptors.hpp"
#include "runtime/link/socket/named_socket.hpp"

namespace troupe {
namespace {

constexpr std::size_t kAnswerPacket = std::size_t{64} << 10;
constexpr std::size_t kMostPacket = std::size_t{1} << 20;
constexpr std::size_t kMostAnswer = std::size_t{4} << 20;
constexpr int kTakesAnswerMs = 5000;
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * kMostServingFds);

/// One that is asked.
struct Asked {
  std::optional<SocketLink> link;
  ServingAnswer answer;
  std::optional<ErrorInfo> error;
  bool is_done = false;
};

std::string process_of(int pid) {
  return "process " + std::to_string(pid);
}
ErrorInfo is_gone(int pid) {
  return {ErrorCode::kUnavailable, process_of(pid) + " does not answer", "it has ended, or is ending",
          "see troupe serve list"};
}
ErrorInfo is_late(int pid, Duration timeout) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return {ErrorCode::kTimeout, process_of(pid) + " has not answered",
          "it was asked " + (ms < 1000 ? std::to_string(ms) + " ms" : std::to_string(ms / 1000) + " s") +
              " ago, and may still be at it",
          "see troupe serve status, or its output"};
}

std::string prefix_of(unsigned user, Serving who) {
  return (who == Serving::kProxy ? "troupe-proxy-" : "troupe-serve-") + std::to_string(user) + "-";
}

void begin(Asked& one, int pid, std::string_view question, Serving who) {
  auto link = connect_by_name(serving_socket_name(::geteuid(), pid, who), false);
  if (!link || ::send(link->fd(), question.data(), question.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const bool is_busy = !link && link.error().code == ErrorCode::kTimeout;
    one.error = is_busy ? is_late(pid, Duration{0}) : is_gone(pid);
    one.is_done = true;
    return;
  }
  one.link.emplace(std::move(*link));
}

/// What is there now of its answer.
void read_some(Asked& one, int pid) {
  std::string packet(kMostPacket, '\0');
  for (;;) {
    alignas(cmsghdr) char control[kControlBytes];
    iovec part{packet.data(), packet.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(one.link->fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) take_descriptors(message, one.answer.fds);
    if (got > 0) one.answer.text.append(packet, 0, static_cast<std::size_t>(got));
    if (one.answer.text.size() > kMostAnswer)
      one.error = ErrorInfo{ErrorCode::kLimit, "the answer of " + process_of(pid) + " is too long",
                            "it has more than 4 MiB", ""};
    if (got <= 0 && one.answer.text.empty()) one.error = is_gone(pid);
    one.is_done = got <= 0 || one.error.has_value();
    if (one.is_done) return;
  }
}

}  // namespace

std::string serving_socket_name(unsigned user, int pid, Serving who) {
  return prefix_of(user, who) + std::to_string(pid);
}

std::vector<int> serving_pids(std::string_view sockets, unsigned user, Serving who) {
  const std::string name = " @" + prefix_of(user, who);
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

std::vector<int> serving_pids(Serving who) {
  std::ostringstream text;
  text << std::ifstream("/proc/net/unix").rdbuf();
  return serving_pids(text.str(), ::geteuid(), who);
}

std::vector<Result<ServingAnswer>> ask_serving(std::span<const int> pids, std::string_view question,
                                               Duration timeout, Serving who) {
  const MonotonicClock clock;
  const Instant latest = clock.now() + timeout;
  std::vector<Asked> asked(pids.size());
  for (std::size_t i = 0; i < pids.size(); ++i) begin(asked[i], pids[i], question, who);
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].is_done) continue;
      waits.push_back({asked[i].link->fd(), POLLIN, 0});
      places.push_back(i);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(latest - clock.now()).count();
    if (waits.empty() || left <= 0) break;
    const auto limit = static_cast<int>(std::min<std::int64_t>(left, 1 << 30));
    if (::poll(waits.data(), waits.size(), limit) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents != 0) read_some(asked[places[i]], pids[places[i]]);
    }
  }
  std::vector<Result<ServingAnswer>> answers;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].error) {
      answers.emplace_back(*std::move(asked[i].error));
    } else if (!asked[i].is_done) {
      answers.emplace_back(is_late(pids[i], timeout));
    } else {
      answers.emplace_back(std::move(asked[i].answer));
    }
  }
  return answers;
}

bool answer_serving(int socket, std::string_view text, std::span<const UniqueFd> fds) {
  const MonotonicClock clock;
  const Instant latest = clock.now() + std::chrono::milliseconds(kTakesAnswerMs);
  for (bool is_first = true; !text.empty();) {
    iovec part{const_cast<char*>(text.data()), std::min(text.size(), kAnswerPacket)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[kControlBytes] = {};
    if (is_first && !fds.empty()) {
      std::vector<int> numbers;
      for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
      attach_descriptors(message, control, numbers);
    }
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      text.remove_prefix(part.iov_len);
      is_first = false;
      continue;
    }
    if (errno == EINTR) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(latest - clock.now()).count();
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || left <= 0) return false;
    pollfd wait{socket, POLLOUT, 0};
    ::poll(&wait, 1, static_cast<int>(left));
  }
  return true;
}

}  // namespace troupe
