#include "bench/collectives/machines.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>

namespace bench {
namespace {

void run(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("cannot join two machines: " + command);
}

/// A process in a network namespace of its own, which ends with this one.
pid_t hold_namespace() {
  std::array<int, 2> ready{};
  if (::pipe2(ready.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char word = ::unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    if (::write(ready[1], &word, 1) == 1 && word == 'y') {
      while (true) ::pause();
    }
    ::_exit(1);
  }
  char word = 'n';
  const bool told = ::read(ready[0], &word, 1) == 1;
  ::close(ready[0]);
  ::close(ready[1]);
  if (told && word == 'y') return pid;
  ::waitpid(pid, nullptr, 0);
  throw std::runtime_error("cannot make a network namespace: run it as root");
}

}  // namespace

Machines::Machines(const std::string& rate, int count) {
  try {
    join(rate, count);
  } catch (...) {
    end();
    throw;
  }
}

void Machines::join(const std::string& rate, int count) {
  const std::string wire = kWireName;
  const bool switched = count > 2;
  for (int m = 0; m < count + (switched ? 1 : 0); ++m) holders_.push_back(hold_namespace());
  const auto space = [&](int m) { return std::to_string(holders_[static_cast<std::size_t>(m)]); };
  const auto inside = [&](int m) { return "nsenter --net=/proc/" + space(m) + "/ns/net "; };
  if (switched) {
    run(inside(count) + "ip link add switch0 type bridge");
    run(inside(count) + "ip link set switch0 up");
    for (int m = 0; m < count; ++m) {
      const std::string port = "port" + std::to_string(m);
      run("ip link add " + wire + " netns " + space(m) + " type veth peer name " + port + " netns " +
          space(count));
      run(inside(count) + "ip link set " + port + " master switch0 up");
    }
  } else {
    run("ip link add " + wire + " netns " + space(0) + " type veth peer name " + wire + " netns " + space(1));
  }
  for (int m = 0; m < count; ++m) {
    run(inside(m) + "ip addr add " + address(m) + "/24 dev " + wire);
    run(inside(m) + "ip link set lo up");
    run(inside(m) + "ip link set " + wire + " up");
    if (!rate.empty())
      run(inside(m) + "tc qdisc add dev " + wire + " root tbf rate " + rate + " burst 256kb latency 50ms");
  }
}

Machines::~Machines() {
  end();
}

void Machines::end() {
  for (const pid_t pid : holders_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

void Machines::enter(int machine) const {
  const std::string path = "/proc/" + std::to_string(holders_[static_cast<std::size_t>(machine)]) + "/ns/net";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter " + path);
  ::close(fd);
}

}  // namespace bench
