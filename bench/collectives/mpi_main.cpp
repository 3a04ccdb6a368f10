// The OpenMPI contender of bench_collectives and bench_all_reduce, started by them with mpirun. Argument: the
// path of the stage's memory.
#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "bench/collectives/stage.hpp"

namespace {

void run(const bench::Shape& shape, float* from, float* to) {
  const int count = static_cast<int>(shape.count), part = static_cast<int>(shape.part());
  switch (shape.op) {
    case bench::Op::kAllReduce:
      MPI_Allreduce(MPI_IN_PLACE, from, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    case bench::Op::kBroadcast:
      MPI_Bcast(from, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      return;
    case bench::Op::kReduceScatter:
      MPI_Reduce_scatter_block(from, to, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    case bench::Op::kAllGather:
      MPI_Allgather(from, part, MPI_FLOAT, to, part, MPI_FLOAT, MPI_COMM_WORLD);
      return;
    case bench::Op::kAllToAll:
      MPI_Alltoall(from, part, MPI_FLOAT, to, part, MPI_FLOAT, MPI_COMM_WORLD);
      return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view argument = argc == 2 ? argv[1] : "";
  if (argument.empty() || argument.starts_with("-")) {
    const bool asked = argument == "--help";
    std::fprintf(asked ? stdout : stderr,
                 "bench_collectives starts this program; it has no use of its own\n");
    return asked ? 0 : 2;
  }
  const int fd = ::open(argv[1], O_RDWR | O_CLOEXEC);
  void* at = ::mmap(nullptr, sizeof(bench::Stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || at == MAP_FAILED) {
    std::perror("cannot map the stage of bench_collectives");
    return 1;
  }
  auto& stage = *static_cast<bench::Stage*>(at);
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const bench::Shape shape = stage.shape();
  float* from = nullptr;
  float* to = nullptr;
  const auto bytes = static_cast<MPI_Aint>(stage.bytes);
  MPI_Alloc_mem(bytes, MPI_INFO_NULL, static_cast<void*>(&from));
  MPI_Alloc_mem(bytes, MPI_INFO_NULL, static_cast<void*>(&to));
  bench::perform(stage, bench::kMpi, rank, true,
                 {{from, shape.in_place() ? from : to, [&] { run(shape, from, to); }}});
  MPI_Free_mem(from);
  MPI_Free_mem(to);
  MPI_Finalize();
  return 0;
}
