/// A DOUBLE of NCCL and CUDA, for tests of the orchestration without a GPU. It is neither: device memory is
/// the host's, streams are threads that run queued tasks, and collectives copy between the buffers of ranks
/// that are threads of one process. What it keeps of the real ones is what the orchestration must get right:
/// - Everything on a stream happens later, in order; events and waits on them are all that joins streams.
/// - Communicators block. A group of calls on one that does not would start a thread, which is counted.
/// - A collective that a rank never joins, or that ranks disagree about, hangs until it is aborted.
/// - A kernel that is aborted ends like one that is done.
/// - A pair of ranks connects at its first message: the call of either blocks until both have made it, or
///   until another thread aborts the communicator. The call uses it until it returns.
/// - ncclCommAbort and a revoke end when the kernels have left their streams, and block until then. In a
/// group
///   they stop all kernels and calls at once; the group's end waits, and frees.
/// - Work on a stream that is captured runs when the graph does; streams join a capture by its events.
/// - From 2.31.2 on ncclCommDestroy waits for every rank's.
/// - What touches the same memory on two streams waits one for the other.
/// Misuse (a call on a communicator that is gone, one freed while a call is in it, the wrong device, a leak)
/// is written down.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/nccl/api.hpp"

namespace troupe::collectives::testing {

struct DoubleState;  // nccl_double.cpp

class NcclDouble {
 public:
  /// Which calls there are depends on the version, as in the real library.
  explicit NcclDouble(int version = 23003);
  ~NcclDouble();
  NcclDouble(const NcclDouble&) = delete;
  NcclDouble& operator=(const NcclDouble&) = delete;

  /// The tables as process `p` sees them; its device is p, too.
  const nccl::Api& api(int p);

  // Faults.
  /// The next call of `name` ("ncclSend", "cudaEventRecord") in process p, after `after` good ones, returns
  /// `code`.
  void fail_call(int p, const std::string& name, int code, int after = 0);
  /// The communicators that process p has now report `code` from now on, whatever is done.
  void async_error(int p, int code);
  /// All processes are on one GPU: a communicator of several is refused, unless that is allowed.
  void one_gpu();
  /// The next kernel of process p on a communicator that it has now does not do its work, and ends when it is
  /// aborted.
  void hang(int p);

  /// From now on cudaEventQuery in process p blocks until `until`, as calls do whose launch queue is full
  /// behind a kernel that is stuck.
  void hold_queries(int p, std::shared_future<void> until);

  /// Captures what goes on the stream from now on, in the global mode, which any thread's cudaEventQuery ends
  /// unless that thread is in the relaxed mode.
  void begin_capture(int p, nccl::Stream stream);
  /// The graph: each call puts it on the stream. Null: the capture was ended, or does not come together.
  std::function<void()> end_capture(int p, nccl::Stream stream);

  /// Runs `task` on a stream, where a kernel of a program would.
  void on_stream(int p, nccl::Stream stream, std::function<void()> task);

  /// Whatever was done wrong so far.
  std::vector<std::string> misuse() const;
  /// "2 streams, 1 event": what is allocated and was not given back; empty when all was.
  std::string leaked() const;
  /// How often process p called `name`.
  int calls(int p, const std::string& name) const;
  /// From now on rank r of a communicator is on hosts[r], and bytes between hosts are counted.
  void set_hosts(std::vector<int> hosts);
  /// Bytes that crossed from one host to another. An all-gather goes around the ring of ranks.
  std::size_t sent_bytes(int from_host, int to_host) const;
  /// The most bytes of device memory that process p had allocated at a time.
  std::size_t most_bytes(int p) const;
  /// How many moves of process p did not have to wait for a fold that was enqueued before.
  int moves_beside_folds(int p) const;
  /// How many threads the library started in process p for groups of calls.
  int threads(int p) const;

 private:
  std::unique_ptr<DoubleState> state_;
};

}  // namespace troupe::collectives::testing
