/// Network namespaces: machines, as far as TCP goes. Two are joined by a wire (a veth pair), more by a switch
/// (a bridge in a namespace of its own). Needs root.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace bench {

inline constexpr const char* kWireName = "wire0";  ///< the interface, on every machine

/// The first half of the ranks is on machine 0.
constexpr int machine_of(int rank, int ranks) {
  return rank < (ranks + 1) / 2 ? 0 : 1;
}

class Machines {
 public:
  /// `rate`: what the wire is slowed down to in each direction, as tc writes it ("10gbit"); empty: as fast as
  /// the kernel is. Throws std::runtime_error.
  explicit Machines(const std::string& rate, int count = 2);
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  /// Moves this thread, and what it starts, to a machine.
  void enter(int machine) const;
  static std::string address(int machine) { return "10.77.0." + std::to_string(machine + 1); }

 private:
  void join(const std::string& rate, int count);
  void end();
  std::vector<pid_t> holders_;  ///< a process that does nothing in each namespace; the switch's is the last
};

}  // namespace bench
