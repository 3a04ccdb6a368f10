// A cluster of one node, and programs that `troupe serve run` starts there by a file.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <utility>

#include "tests/e2e/support.hpp"

namespace troupe::e2e {

struct ServingCluster {
  TempFolder where;
  std::string root = where.path();
  std::string file;  ///< whose name is the job's

  explicit ServingCluster(const std::string& name) : file(root + "/" + name + ".toml") {
    const Ran ran = troupe("start --head --port 0 --cpus 2 --gpus 0 --detach");
    INFO(ran.output);
    REQUIRE(ran.code == 0);
  }
  ServingCluster(const ServingCluster&) = delete;
  ServingCluster& operator=(const ServingCluster&) = delete;
  ~ServingCluster() { troupe("stop"); }

  Ran troupe(const std::string& words) const {
    return shell(TROUPE_CLI " " + words + " --folder " + root + "/cluster");
  }
  /// Applies the file with that text.
  Ran run(const std::string& text, const std::string& flags = "") const {
    std::ofstream(file) << text;
    return troupe("serve run " + file + " " + flags);
  }
};

}  // namespace troupe::e2e
