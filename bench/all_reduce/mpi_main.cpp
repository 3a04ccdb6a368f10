// The OpenMPI contender of bench_all_reduce, started by it with mpirun. Argument: the path of the stage's
// memory.
#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "bench/all_reduce/stage.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "bench_all_reduce starts this program; it has no use of its own\n");
    return 2;
  }
  const int fd = ::open(argv[1], O_RDWR | O_CLOEXEC);
  void* at = ::mmap(nullptr, sizeof(bench::Stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || at == MAP_FAILED) {
    std::perror("cannot map the stage of bench_all_reduce");
    return 1;
  }
  auto& stage = *static_cast<bench::Stage*>(at);
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::size_t count = stage.bytes / sizeof(float);
  float* values = nullptr;
  MPI_Alloc_mem(static_cast<MPI_Aint>(stage.bytes), MPI_INFO_NULL, &values);
  bench::perform(
      stage, bench::kMpi, rank, 1, true, [&](int) { return values; },
      [&](int) {
        MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
  MPI_Free_mem(values);
  MPI_Finalize();
  return 0;
}
