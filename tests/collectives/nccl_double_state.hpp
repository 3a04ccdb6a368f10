/// What the two halves of the double share (nccl_double.hpp). Included by them alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "collectives/nccl/tree_fold.hpp"
#include "tests/collectives/nccl_double.hpp"
#include "tests/collectives/stream_recorder.hpp"

namespace troupe::collectives::testing {

/// A moment on a stream.
struct Token {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  void finish() {
    const std::lock_guard hold(mutex);
    done = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock hold(mutex);
    changed.wait(hold, [&] { return done; });
  }
  bool is_done() {
    const std::lock_guard hold(mutex);
    return done;
  }
};

/// A CUDA graph that is being captured, and then its tasks.
struct Capture {
  std::mutex mutex;
  bool broken = false;
  std::vector<std::function<void()>> tasks;
  std::set<void*> streams;                               ///< that are part of it
  std::map<void*, std::size_t> enqueued;                 ///< tasks of a stream
  std::map<void*, std::map<void*, std::size_t>> joined;  ///< by stream: how many of another it waits for
  void* origin = nullptr;
  std::set<void*> memory;  ///< it allocated and has to free
  std::vector<std::unique_ptr<std::byte[]>> owned;
};

struct DoubleEvent {
  std::mutex mutex;
  std::shared_ptr<Token> token;      ///< null before it is first recorded
  std::shared_ptr<Capture> capture;  ///< of a moment in a graph
  /// There: how much of every stream comes before it.
  std::map<void*, std::size_t> before;
  StreamRecorder::Clock clock;  ///< of a moment on a stream
};

/// Runs tasks in order on a thread; its destructor runs what is left.
class DoubleStream {
 public:
  DoubleStream();
  ~DoubleStream();
  void enqueue(std::function<void()> task);
  std::shared_ptr<Capture> capture();
  void set_capture(std::shared_ptr<Capture> capture);

 private:
  void run();
  std::shared_ptr<Capture> capture_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

/// One NCCL call that goes onto a stream.
struct Operation {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kRecv };
  Kind kind = Kind::kAllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  nccl::NcclType type = nccl::NcclType::kUint8;
  nccl::NcclOp op = nccl::NcclOp::kSum;
  double factor = 1;  ///< of an operator made at run time
  int peer = 0;       ///< or the root
};

/// A collective, as the ranks arrive at it.
struct Meeting {
  std::map<int, Operation> arrived;
  bool done = false;
};

struct Letter {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool taken = false;
};

/// The communicator that ranks share.
struct World {
  explicit World(int n) : size(n) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;  ///< by (from, to)
  std::map<std::vector<int>, std::shared_ptr<World>> shrunk;                ///< by who is gone
  std::set<std::pair<int, int>> senders, receivers;  ///< by (from, to): which side of a pair has a call
  std::set<int> destroyed;                           ///< in ncclCommDestroy, or through it
  bool aborted = false;                              ///< by some rank
};

/// A rank's handle of a world.
struct DoubleComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int process = 0;
  bool blocking = true;
  // Guarded by world->mutex.
  bool stopped = false;  ///< aborted or revoked
  int running = 0;       ///< kernels on streams
  int inside = 0;        ///< calls that other threads could free it under
  std::uint64_t collectives = 0;
  // Guarded by the double's mutex.
  bool revoked = false, finalized = false, ending = false, gone = false;
  bool hangs = false;               ///< its next kernel does
  int error = 0;                    ///< what its ncclCommGetAsyncError says for good
  std::weak_ptr<DoubleComm> child;  ///< that is being made from it: an abort of this one stops it, too
  std::map<int, double> operators;
};

struct DoubleState {
  mutable std::mutex mutex;
  int version = 0;
  std::map<int, std::unique_ptr<nccl::Api>> tables;
  std::map<int, std::unique_ptr<DoubleStream>> default_streams;
  std::set<void*> streams, events, memory;
  std::map<void*, nccl::Comm> registrations;
  std::map<nccl::Comm, std::shared_ptr<DoubleComm>> comms;
  std::map<int, std::shared_ptr<World>> worlds;  ///< by the id's number
  int next_id = 1;
  struct Fault {
    int code = 0;
    int after = 0;
  };
  std::map<std::pair<int, std::string>, Fault> faults;
  std::map<std::pair<int, std::string>, int> calls;
  std::map<int, int> threads;  ///< that the library started for groups of calls, by process
  bool one_gpu = false;
  std::map<int, std::shared_future<void>> held;  ///< by process: its questions about events wait for this
  std::set<int> shares_gpu;
  std::set<std::shared_ptr<Capture>> captures;  ///< in the global mode, going on
  std::vector<std::string> misuse;
  std::map<int, StreamRecorder> recorders;          ///< by process
  std::vector<int> hosts;                           ///< by rank; empty: all on one
  std::map<std::pair<int, int>, std::size_t> sent;  ///< bytes by (from, to), which are hosts

  StreamRecorder& recorder(int p);
  /// Notes what is put on a stream that is not captured.
  void put(int p, nccl::Stream stream, StreamRecorder::What what,
           const std::vector<StreamRecorder::Range>& touches);
  /// Counts a call; the code of a fault, or 0.
  int enter(int p, const std::string& name);
  std::shared_future<void> held_of(int p);
  void note(const std::string& what);
  DoubleStream& stream_of(int p, nccl::Stream stream);
};

/// What a call returns that an abort ended.
inline constexpr int kInternalError = 3;

/// What is current on this thread.
int current_device();

/// Null, and misuse, for one that is gone. Misuse, too, in a thread with another device: NCCL sets the
/// communicator's and goes back to that one, which makes a context on it since CUDA 12.
std::shared_ptr<DoubleComm> find(DoubleState& s, nccl::Comm comm, const char* name);
std::shared_ptr<DoubleComm> add_comm(DoubleState& s, std::shared_ptr<World> world, int rank, int p,
                                     int blocking);
nccl::Comm handle_of(const std::shared_ptr<DoubleComm>& comm);
/// Fills it in where the caller wants it, who may look meanwhile.
void give(const std::shared_ptr<DoubleComm>& comm, nccl::Comm* made);
/// Blocks until all ranks have joined, or an abort; the code to return.
int await_joined(DoubleComm& comm);
/// Makes kernels leave their streams, and calls that block return.
void stop(DoubleComm& comm);

/// A call that is in the library, which an abort may not free its communicator under.
class Inside {
 public:
  explicit Inside(std::shared_ptr<DoubleComm> comm);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  std::shared_ptr<DoubleComm> comm_;
};

void fill_membership(DoubleState& s, int p, nccl::NcclApi& api);
void fill_memory(DoubleState& s, int p, nccl::NcclApi& api);
void fill_cuda(DoubleState& state, int p, nccl::CudaApi& api);
void fill_nccl(DoubleState& state, int p, nccl::NcclApi& api);

}  // namespace troupe::collectives::testing
