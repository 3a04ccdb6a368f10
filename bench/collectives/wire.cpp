#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <stdexcept>
#include <vector>

#include "bench/collectives/contenders.hpp"
#include "bench/collectives/machines.hpp"

namespace bench {
namespace {

constexpr int kPort = 20100;

int connect_machines(int machine) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  ::inet_pton(AF_INET, Machines::address(0).c_str(), &address.sin_addr);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  int joined = -1;
  if (machine == 0) {
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(fd, at, sizeof address) != 0 || ::listen(fd, 1) != 0)
      throw std::runtime_error("cannot listen");
    joined = ::accept(fd, nullptr, nullptr);
    ::close(fd);
  } else {
    for (int i = 0; ::connect(fd, at, sizeof address) != 0; ++i) {
      if (i == 500) throw std::runtime_error("cannot connect the machines");
      ::usleep(10'000);
    }
    joined = fd;
  }
  ::setsockopt(joined, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return joined;
}

/// Bytes that have to cross the wire from `machine`, whatever the algorithm.
std::size_t bytes_from(int machine, const Shape& shape) {
  const auto here = static_cast<std::size_t>(machine == 0 ? (shape.ranks + 1) / 2 : shape.ranks / 2);
  const auto there = static_cast<std::size_t>(shape.ranks) - here;
  const std::size_t part = shape.part() * sizeof(float);
  switch (shape.op) {
    case Op::kAllReduce:  // the other machine's half of the partial sum, and the own half of the result
      return shape.count * sizeof(float);
    case Op::kBroadcast:
      return machine == 0 ? shape.count * sizeof(float) : 0;
    case Op::kReduceScatter:
      return there * part;
    case Op::kAllGather:
      return here * part;
    case Op::kAllToAll:
      return here * there * part;
  }
  return 0;
}

void swap_bytes(int fd, std::vector<char>& out, std::vector<char>& in) {
  std::size_t sent = 0, got = 0;
  while (sent < out.size() || got < in.size()) {
    bool moved = false;
    if (sent < out.size()) {
      const ssize_t n = ::send(fd, out.data() + sent, out.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::size_t>(n);
      moved = n > 0;
    }
    if (got < in.size()) {
      const ssize_t n = ::recv(fd, in.data() + got, in.size() - got, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) throw std::runtime_error("the wire broke");
      if (n > 0) got += static_cast<std::size_t>(n);
      moved = moved || n > 0;
    }
    if (moved) continue;
    pollfd wanted{fd, static_cast<short>((sent < out.size() ? POLLOUT : 0) | (got < in.size() ? POLLIN : 0)),
                  0};
    ::poll(&wanted, 1, -1);
  }
}

}  // namespace

void perform_wire(Stage& stage, int rank) {
  const Shape shape = stage.shape();
  const int machine = machine_of(rank, stage.ranks);
  const bool speaks = rank == 0 || machine_of(rank - 1, stage.ranks) != machine;
  std::vector<float> unused(shape.input_count());
  if (!speaks) return perform(stage, kWire, rank, false, {{unused.data(), nullptr, [] {}}});
  const int fd = connect_machines(machine);
  std::vector<char> out(bytes_from(machine, shape)), in(bytes_from(1 - machine, shape));
  perform(stage, kWire, rank, false, {{unused.data(), nullptr, [&] { swap_bytes(fd, out, in); }}});
  ::close(fd);
}

}  // namespace bench
