/// The disk that a simulated process spills its objects to: it takes its time, and is full at times.
#pragma once

#include "runtime/objects/spill_files.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;

/// A file is memory of its own: it goes with its process, however that ends.
class SimSpillDisk final : public objects::SpillDisk {
 public:
  explicit SimSpillDisk(Cluster& cluster) : cluster_(cluster) {}
  std::string folder() const override { return "/spilled"; }
  UniqueFd open(const std::string& folder) override;
  ssize_t write(int file, const void* bytes, std::size_t size, off_t offset) override;
  void remove(UniqueFd file) override;
  /// That lie on it.
  std::size_t files() const { return files_; }

 private:
  bool refuses();
  Cluster& cluster_;
  std::size_t files_ = 0;
  bool fills_up_ = false;  ///< it took a part of what is written now, and will take no more of it
};

}  // namespace troupe::sim
