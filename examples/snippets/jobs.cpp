// Jobs that a program submits to a running cluster, follows, and stops.
#include <cstdio>
#include <troupe/error.hpp>
#include <troupe/jobs.hpp>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "jobs HOST:PORT of a cluster's head\n");
    return 2;
  }
  try {
    troupe::JobClient jobs({.address = argv[1]});
    const auto id = jobs.submit({.program = "sh", .args = {"-c", "echo hello; exit 3"}, .num_cpus = 1});
    jobs.read_output(id, {.follow = true}, [](const troupe::JobOutput& piece) {
      std::fwrite(piece.bytes.data(), 1, piece.bytes.size(), stdout);
    });
    std::printf("it ended with %d\n", jobs.wait(id).exit_code);

    const auto large = jobs.submit({.program = "true", .num_cpus = 10000});
    std::printf("%s\n", jobs.why(large).verdict.c_str());
    jobs.stop(large);
    for (const auto& job : jobs.list()) std::printf("%s\n", troupe::to_string(job.status));
    return 0;
  } catch (const troupe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
