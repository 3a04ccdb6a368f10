/// Ranks agree on a sum, in an ordinary program: no cluster, no LibTorch. See README.md for how to start it.

#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <troupe/collectives.hpp>

using namespace troupe::collectives;

namespace {

constexpr const char* kUsage =
    "usage: all_reduce [--backend NAME] [--url URL] [--elements N]\n"
    "  --backend   native (the default); gloo, mpi (under mpirun) where the build has them\n"
    "  --url       where the ranks meet (default env://)\n"
    "  --elements  floats to sum (default 1,048,576)\n"
    "In two shells, or as any launcher does it:\n"
    "  RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 all_reduce\n"
    "  RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 all_reduce\n";

struct Arguments {
  std::string backend = "native";
  std::string url = "env://";
  std::size_t elements = 1 << 20;
};

/// False: the arguments make no sense.
bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return false;
    const std::string value = argv[i + 1];
    if (flag == "--backend") {
      arguments.backend = value;
    } else if (flag == "--url") {
      arguments.url = value;
    } else if (flag == "--elements" && value.find_first_not_of("0123456789") == std::string::npos &&
               value.size() < 10) {
      arguments.elements = std::stoul(value);
    } else {
      return false;
    }
  }
  return arguments.elements > 0;
}

void run(const Arguments& arguments) {
  const auto group = init_process_group(arguments.backend, arguments.url);

  // Memory of the group: operations use it in place. A std::span of your own works, too, and is copied.
  const auto values = group->allocate<float>(arguments.elements);
  std::iota(values.begin(), values.end(), static_cast<float>(group->rank()));

  group->all_reduce(values)->wait();  // the sum over the ranks, the same bits on each

  std::printf("rank %d of %d: element 0 is %g, element %zu is %g\n", group->rank(), group->size(),
              values.front(), values.size() - 1, values.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  use_gloo();
  use_mpi();
  try {
    run(arguments);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "all_reduce: %s\n", e.what());
    return 1;
  }
}
