/// A cluster started by the command line: for tests whose executable knows TROUPE_CLI.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "scheduler/init/cluster_folder.hpp"
#include "tests/e2e/support.hpp"

namespace troupe::e2e {

/// A head with a node ("one"), from folder a, and a second node ("two"), from folder b, which came in with a
/// token. They have 4 CPUs each.
struct TwoNodes {
  /// With more options of `troupe start` for each.
  explicit TwoNodes(const std::string& one = "", const std::string& two = "")
      : TwoNodes(0) {  // whatever fails from here on, the destructor runs
    started(troupe("start --head --port 0 --cpus 4 --gpus 0 --name one --detach " + one + " --folder " +
                   root + "/a"));
    address = read_file(root + "/a/address");
    address.pop_back();
    started(troupe("token --folder " + root + "/a --output " + root + "/token"));
    started(troupe("start --address " + address + " --cpus 4 --gpus 0 --name two --detach " + two +
                   " --token-file " + root + "/token --folder " + root + "/b"));
  }
  ~TwoNodes() {
    troupe("stop --folder " + root + "/b");
    troupe("stop --folder " + root + "/a");
  }
  TwoNodes(const TwoNodes&) = delete;
  TwoNodes& operator=(const TwoNodes&) = delete;

  static void started(const Ran& ran) {
    INFO(ran.output);
    REQUIRE(ran.code == 0);
  }
  Ran troupe(const std::string& words) const { return shell(TROUPE_CLI " " + words); }
  pid_t supervisor(const std::string& folder) const {
    return ClusterFolder::open(root + "/" + folder).value().running().at(0).pid;
  }

  const TempFolder where;
  const std::string root = where.path();
  std::string address;

 private:
  explicit TwoNodes(int) {}
};

}  // namespace troupe::e2e
