/// Which GPUs a node finds and offers, over a double of CUDA's driver.
#include "runtime/node/gpus.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace troupe;

namespace {

using Names = std::vector<std::string>;

struct Variable {
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

wire::NodeConfig config(int gpus, int part = 0, int parts = 1) {
  wire::NodeConfig made;
  made.name = "one";
  made.gpus = gpus;
  made.gpu_part = part;
  made.gpu_parts = parts;
  return made;
}

}  // namespace

TEST_CASE("GPUs are named as CUDA_VISIBLE_DEVICES takes them") {
  const Variable has("TROUPE_TEST_GPUS", "gm");
  CHECK(find_gpus(TROUPE_CUDA_DRIVER_DOUBLE).value() ==
        Names{"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f"});
}

TEST_CASE("A machine without a driver, or a driver without a GPU, has none; a broken driver is an error") {
  CHECK(find_gpus("libno-such-driver.so.1").value().empty());
  {
    const Variable none("TROUPE_TEST_GPUS", "none");
    CHECK(find_gpus(TROUPE_CUDA_DRIVER_DOUBLE).value().empty());
  }
  const Variable broken("TROUPE_TEST_GPUS", "broken");
  const auto found = find_gpus(TROUPE_CUDA_DRIVER_DOUBLE);
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().why == "cuInit gave CUDA's error 803");
  // A library that is no driver.
  CHECK(find_gpus("libm.so.6").error().why == "CUDA's driver has no cuInit");
}

TEST_CASE(
    "Nodes of one machine share its GPUs out; a node that is to have more than there are does not start") {
  const Names four{"a", "b", "c", "d"};
  CHECK(offered_gpus(config(-1), four).value() == four);
  CHECK(offered_gpus(config(2), four).value() == Names{"a", "b"});
  CHECK(offered_gpus(config(-1, 0, 3), four).value() == Names{"a", "d"});
  CHECK(offered_gpus(config(-1, 2, 3), four).value() == Names{"c"});
  CHECK(offered_gpus(config(0), four).value().empty());
  const auto refused = offered_gpus(config(3, 1, 2), four);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::kBadConfig);
  CHECK(refused.error().why == "it is to have 3 GPUs, and there are 2 for it");
}

TEST_CASE("A node pretends to have GPUs when a test says so") {
  {
    const Variable two("TROUPE_PRETEND_GPUS", "2");
    CHECK(gpus_of_node(config(-1, 1, 2)).value() == Names{"0", "1"});
    CHECK(gpus_of_node(config(1)).value() == Names{"0"});
    CHECK_FALSE(gpus_of_node(config(3)).ok());
    wire::NodeConfig gateway = config(-1);
    gateway.gateway = true;
    CHECK(gpus_of_node(gateway).value().empty());
  }
  const Variable words("TROUPE_PRETEND_GPUS", "many");
  CHECK(gpus_of_node(config(-1)).error().why == "TROUPE_PRETEND_GPUS is 'many', which is not 0 to 1,024");
}
