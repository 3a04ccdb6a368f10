#include "collectives/mpi/mpi_runtime.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

std::atomic<bool> may_finalize{true};
pid_t initialized_by = 0;

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  // A forked child has no part in MPI.
  if (finalized == 0 && may_finalize.load() && ::getpid() == initialized_by) MPI_Finalize();
}

}  // namespace

void ensure_mpi() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int done = 0;
  MPI_Finalized(&done);
  if (done != 0) {
    throw BadConfig("cannot use MPI", "it was finalised in this process", "make groups before MPI_Finalize");
  }
  MPI_Initialized(&done);
  int provided = 0;
  if (done != 0) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    initialized_by = ::getpid();
    // OpenMPI tells it of what went wrong in a collective, whichever communicator that is of.
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    std::atexit(finalize_at_exit);
  }
  if (provided >= MPI_THREAD_MULTIPLE) return;
  throw BadConfig("cannot use MPI", "it has no MPI_THREAD_MULTIPLE in this process",
                  done != 0
                      ? "initialise it with MPI_Init_thread and MPI_THREAD_MULTIPLE, or leave that to us"
                      : "use an MPI that was built with threads");
}

void keep_mpi_from_finalizing() {
  may_finalize.store(false);
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_error({ErrorCode::kAborted,
               std::string(call) + " failed",
               {text, static_cast<std::size_t>(length)},
               "see that all ranks call the same operations with the same counts"});
}

MPI_Datatype carrier_type(DType dtype) {
  switch (element_size(dtype)) {
    case 16:
      return MPI_C_DOUBLE_COMPLEX;
    case 8:
      return MPI_INT64_T;
    case 4:
      return MPI_INT32_T;
    case 2:
      return MPI_INT16_T;
    default:
      return MPI_BYTE;
  }
}

MpiReduction mpi_reduction(DType dtype, ReduceOp op) {
  const auto type = [&]() -> MPI_Datatype {
    switch (dtype) {
      case DType::kFloat64:
        return MPI_DOUBLE;
      case DType::kFloat32:
        return MPI_FLOAT;
      case DType::kInt8:
        return MPI_INT8_T;
      case DType::kInt16:
        return MPI_INT16_T;
      case DType::kInt32:
        return MPI_INT32_T;
      case DType::kInt64:
        return MPI_INT64_T;
      case DType::kUInt8:
        return MPI_UINT8_T;
      case DType::kUInt16:
        return MPI_UINT16_T;
      case DType::kUInt32:
        return MPI_UINT32_T;
      case DType::kUInt64:
        return MPI_UINT64_T;
      default:
        return MPI_DATATYPE_NULL;  // floats of 16 and 8 bits, complex; and MPI's bool has other operations
    }
  }();
  if (type == MPI_DATATYPE_NULL) return {};
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return {type, MPI_SUM};
    case ReduceOp::kProduct:
      return {type, MPI_PROD};
    case ReduceOp::kMin:
      return {type, MPI_MIN};
    case ReduceOp::kMax:
      return {type, MPI_MAX};
    case ReduceOp::kBand:
      return {type, MPI_BAND};
    case ReduceOp::kBor:
      return {type, MPI_BOR};
    case ReduceOp::kBxor:
      return {type, MPI_BXOR};
    default:
      return {};
  }
}

}  // namespace troupe::collectives
