/// Two network namespaces joined by a wire (a veth pair): two machines, as far as TCP goes. Needs root.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace bench {

inline constexpr const char* kWireName = "wire0";  ///< the interface, on both machines

/// The first half of the ranks is on machine 0.
constexpr int machine_of(int rank, int ranks) {
  return rank < (ranks + 1) / 2 ? 0 : 1;
}

class Machines {
 public:
  /// `rate`: what the wire is slowed down to in each direction, as tc writes it ("10gbit"); empty: as fast as
  /// the kernel is. Throws std::runtime_error.
  explicit Machines(const std::string& rate);
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  /// Moves this thread, and what it starts, to a machine.
  void enter(int machine) const;
  static std::string address(int machine) { return "10.77.0." + std::to_string(machine + 1); }

 private:
  void end();
  std::vector<pid_t> holders_;  ///< a process that does nothing in each namespace
};

}  // namespace bench
