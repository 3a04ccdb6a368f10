/// How programs that serve, and proxies of theirs on other nodes, are found and asked on their machine. Each
/// listens on a Unix socket named troupe-serve-UID-PID or troupe-proxy-UID-PID, in the abstract space, which
/// the same user alone may ask. One packet is a question; the packets behind it, up to the end, are its
/// answer. Descriptors may come with the first of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

/// The most descriptors that come with an answer: the kernel takes no more in a packet.
inline constexpr std::size_t kMostServingFds = 250;

/// Who listens there.
enum class Serving {
  kProgram,
  kProxy,  ///< of a program on another node
};

std::string serving_socket_name(unsigned user, int pid, Serving who = Serving::kProgram);

/// Of this user, in order: by what the kernel's list of Unix sockets (/proc/net/unix) says.
std::vector<int> serving_pids(std::string_view sockets, unsigned user, Serving who = Serving::kProgram);
/// Of this user on this machine.
std::vector<int> serving_pids(Serving who = Serving::kProgram);

struct ServingAnswer {
  std::string text;
  std::vector<UniqueFd> fds;
};
/// What each of these processes answers, in their order. All are asked at once, and have `timeout` together.
/// Errors: kUnavailable where one has ended, kTimeout where it has not answered, kLimit above 4 MiB.
std::vector<Result<ServingAnswer>> ask_serving(std::span<const int> pids, std::string_view question,
                                               Duration timeout, Serving who = Serving::kProgram);
/// Sends an answer. False where the other end is gone, or does not take it within five seconds. REQUIRES:
/// fds.size() <= kMostServingFds.
bool answer_serving(int socket, std::string_view text, std::span<const UniqueFd> fds = {});

}  // namespace troupe
