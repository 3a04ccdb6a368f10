/// The CUDA half of the double, and what both halves share (nccl_double.hpp).

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/collectives/fold_on_host.hpp"
#include "tests/collectives/nccl_double_state.hpp"

namespace troupe::collectives::testing {
namespace {

constexpr int kDevices = 64;
constexpr std::chrono::seconds kForever(20);

using nccl::CudaApi;
using nccl::Event;
using nccl::Stream;

thread_local int device_of_thread = 0;
thread_local int capture_mode = 0;  // global

CudaApi make_memory_calls(DoubleState& s, int p) {
  CudaApi api;
  const auto allocate = [&s, p](const char* name, void** at, std::size_t bytes) {
    if (const int code = s.enter(p, name)) return code;
    *at = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(*at, 0xa5, bytes);  // nobody may count on zeros
    const std::lock_guard hold(s.mutex);
    s.memory.insert(*at);
    return 0;
  };
  api.cudaMallocAsync = [&s, p, allocate](void** at, std::size_t bytes, Stream stream) {
    if (const auto capture = s.stream_of(p, stream).capture()) {
      const std::lock_guard hold(capture->mutex);
      *at = capture->owned.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
      capture->memory.insert(*at);
      return 0;
    }
    const int code = allocate("cudaMallocAsync", at, bytes);
    if (code == 0) s.recorder(p).allocate(*at, bytes);
    return code;
  };
  api.cudaMallocHost = [allocate](void** at, std::size_t bytes) {
    return allocate("cudaMallocHost", at, bytes);
  };
  const auto forget = [&s](void* at) {
    const std::lock_guard hold(s.mutex);
    if (s.memory.erase(at) == 0) s.misuse.push_back("memory freed twice, or not of the device");
  };
  api.cudaFreeAsync = [&s, p, forget](void* at, Stream stream) {
    if (const int code = s.enter(p, "cudaFreeAsync")) return code;
    if (const auto capture = s.stream_of(p, stream).capture()) {
      const std::lock_guard hold(capture->mutex);
      if (capture->memory.erase(at) == 0) s.note("a graph frees what it did not allocate");
      return 0;
    }
    forget(at);
    if (const auto misuse = s.recorder(p).free(&s.stream_of(p, stream), at); !misuse.empty()) s.note(misuse);
    s.stream_of(p, stream).enqueue([at] { std::free(at); });
    return 0;
  };
  api.cudaFreeHost = [&s, p, forget](void* at) {
    if (const int code = s.enter(p, "cudaFreeHost")) return code;
    forget(at);
    std::free(at);
    return 0;
  };
  api.cudaMemcpyAsync = [&s, p](void* to, const void* from, std::size_t bytes, Stream stream) {
    if (const int code = s.enter(p, "cudaMemcpyAsync")) return code;
    s.put(p, stream, StreamRecorder::What::kOther, {{from, bytes, false}, {to, bytes, true}});
    s.stream_of(p, stream).enqueue([=] { std::memcpy(to, from, bytes); });
    return 0;
  };
  return api;
}

void fill_events(DoubleState& s, int p, CudaApi& api) {
  api.cudaEventCreate = [&s, p](Event* event) {
    if (const int code = s.enter(p, "cudaEventCreate")) return code;
    *event = new DoubleEvent;
    const std::lock_guard hold(s.mutex);
    s.events.insert(*event);
    return 0;
  };
  api.cudaEventDestroy = [&s, p](Event event) {
    if (const int code = s.enter(p, "cudaEventDestroy")) return code;
    {
      const std::lock_guard hold(s.mutex);
      s.events.erase(event);
    }
    delete static_cast<DoubleEvent*>(event);
    return 0;
  };
  api.cudaEventRecord = [&s, p](Event event, Stream stream) {
    if (const int code = s.enter(p, "cudaEventRecord")) return code;
    auto token = std::make_shared<Token>();
    auto* at = static_cast<DoubleEvent*>(event);
    const auto capture = s.stream_of(p, stream).capture();
    {
      const std::lock_guard hold(at->mutex);
      at->capture = capture;
      at->token = capture ? nullptr : token;
      if (capture) {
        const std::lock_guard inner(capture->mutex);
        void* on = &s.stream_of(p, stream);
        at->before = capture->joined[on];
        at->before[on] = capture->enqueued[on];
        return 0;
      }
      at->clock = s.recorder(p).record(&s.stream_of(p, stream));
    }
    s.stream_of(p, stream).enqueue([token] { token->finish(); });
    return 0;
  };
  api.cudaStreamIsCapturing = [&s, p](Stream stream, bool* capturing) {
    *capturing = s.stream_of(p, stream).capture() != nullptr;
    return 0;
  };
  api.cudaThreadExchangeStreamCaptureMode = [](int* mode) {
    std::swap(capture_mode, *mode);
    return 0;
  };
  api.cudaEventQuery = [&s, p](Event event) {
    if (const int code = s.enter(p, "cudaEventQuery")) return code;
    if (const auto until = s.held_of(p); until.valid()) {
      if (until.wait_for(kForever) != std::future_status::ready) s.note("cudaEventQuery is held for good");
    }
    {
      const std::lock_guard hold(s.mutex);
      for (const auto& capture : s.captures) {
        if (capture_mode == nccl::kCaptureRelaxed) break;
        capture->broken = true;
        s.misuse.push_back("cudaEventQuery during a capture in the global mode ends it");
      }
    }
    auto* at = static_cast<DoubleEvent*>(event);
    const std::lock_guard hold(at->mutex);
    if (at->capture) {
      s.note("cudaEventQuery of an event in a graph");
      return 907;
    }
    if (at->token && !at->token->is_done()) return nccl::kCudaNotReady;
    s.recorder(p).host_saw(at->clock);
    return 0;
  };
  api.cudaStreamWaitEvent = [&s, p](Stream stream, Event event) {
    if (const int code = s.enter(p, "cudaStreamWaitEvent")) return code;
    auto* at = static_cast<DoubleEvent*>(event);
    const std::lock_guard hold(at->mutex);
    DoubleStream& waits = s.stream_of(p, stream);
    if (at->capture) {
      if (!waits.capture()) waits.set_capture(at->capture);
      const std::lock_guard inner(at->capture->mutex);
      at->capture->streams.insert(&waits);
      auto& joined = at->capture->joined[&waits];
      for (const auto& [part, tasks] : at->before) joined[part] = std::max(joined[part], tasks);
      return 0;
    }
    if (waits.capture()) s.note("a stream that is captured waits for what is not");
    s.recorder(p).wait(&waits, at->clock);
    if (at->token) s.stream_of(p, stream).enqueue([token = at->token] { token->wait(); });
    return 0;
  };
}

}  // namespace

int current_device() {
  return device_of_thread;
}

DoubleStream::DoubleStream() : thread_([this] { run(); }) {}

DoubleStream::~DoubleStream() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Capture> DoubleStream::capture() {
  const std::lock_guard hold(mutex_);
  return capture_;
}

void DoubleStream::set_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard hold(mutex_);
  capture_ = std::move(capture);
}

void DoubleStream::enqueue(std::function<void()> task) {
  if (const auto into = capture()) {
    const std::lock_guard hold(into->mutex);
    into->tasks.push_back(std::move(task));
    ++into->enqueued[this];
    return;
  }
  const std::lock_guard hold(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void DoubleStream::run() {
  std::unique_lock hold(mutex_);
  for (;;) {
    changed_.wait(hold, [&] { return !tasks_.empty() || ending_; });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    hold.unlock();
    task();
    hold.lock();
  }
}

int DoubleState::enter(int p, const std::string& name) {
  const std::lock_guard hold(mutex);
  ++calls[{p, name}];
  const auto fault = faults.find({p, name});
  if (fault == faults.end() || fault->second.after-- > 0) return 0;
  const int code = fault->second.code;
  faults.erase(fault);
  return code;
}

StreamRecorder& DoubleState::recorder(int p) {
  const std::lock_guard hold(mutex);
  return recorders[p];
}

void DoubleState::put(int p, Stream stream, StreamRecorder::What what,
                      const std::vector<StreamRecorder::Range>& touches) {
  DoubleStream& on = stream_of(p, stream);
  if (on.capture()) return;
  if (const auto wrong = recorder(p).put(&on, what, touches); !wrong.empty()) note(wrong);
}

std::shared_future<void> DoubleState::held_of(int p) {
  const std::lock_guard hold(mutex);
  return held[p];
}

void DoubleState::note(const std::string& what) {
  const std::lock_guard hold(mutex);
  misuse.push_back(what);
}

DoubleStream& DoubleState::stream_of(int p, Stream stream) {
  if (stream != nullptr) return *static_cast<DoubleStream*>(stream);
  const std::lock_guard hold(mutex);
  auto& found = default_streams[p];
  if (!found) found = std::make_unique<DoubleStream>();
  return *found;
}

void fill_cuda(DoubleState& s, int p, CudaApi& api) {
  api = make_memory_calls(s, p);
  fill_events(s, p, api);
  api.cudaGetErrorString = [](int) { return "an error of the double"; };
  api.cudaGetDeviceCount = [&s, p](int* count) {
    if (const int code = s.enter(p, "cudaGetDeviceCount")) return code;
    *count = kDevices;
    return 0;
  };
  api.cudaGetDevice = [&s, p](int* device) {
    if (const int code = s.enter(p, "cudaGetDevice")) return code;
    *device = device_of_thread;
    return 0;
  };
  api.cudaSetDevice = [&s, p](int device) {
    if (const int code = s.enter(p, "cudaSetDevice")) return code;
    device_of_thread = device;
    return 0;
  };
  api.cudaStreamCreate = [&s, p](Stream* stream) {
    if (const int code = s.enter(p, "cudaStreamCreate")) return code;
    if (device_of_thread != p) s.note("a stream is made on another device than the rank's");
    *stream = new DoubleStream;
    const std::lock_guard hold(s.mutex);
    s.streams.insert(*stream);
    return 0;
  };
  api.cudaStreamDestroy = [&s, p](Stream stream) {
    if (const int code = s.enter(p, "cudaStreamDestroy")) return code;
    {
      const std::lock_guard hold(s.mutex);
      s.streams.erase(stream);
    }
    s.recorder(p).forget(stream);
    delete static_cast<DoubleStream*>(stream);
    return 0;
  };
  api.load_kernels = [&s, p] { return s.enter(p, "load_kernels"); };
  api.launch_tree_fold = [&s, p](const nccl::TreeFold& fold, Stream stream) {
    if (const int code = s.enter(p, "launch_tree_fold")) return code;
    std::vector<StreamRecorder::Range> touches;
    const std::size_t bytes = fold.count * element_size(fold.dtype);
    for (int i = 0; i < fold.sources; ++i) touches.push_back({nccl::source_of(fold, i), bytes, false});
    touches.push_back({fold.out, bytes, true});
    s.put(p, stream, StreamRecorder::What::kFold, touches);
    s.stream_of(p, stream).enqueue([fold] { nccl::fold_on_host(fold); });
    return 0;
  };
}

NcclDouble::NcclDouble(int version) : state_(std::make_unique<DoubleState>()) {
  state_->version = version;
}

NcclDouble::~NcclDouble() {
  state_->default_streams.clear();
}

const nccl::Api& NcclDouble::api(int p) {
  const std::lock_guard hold(state_->mutex);
  auto& table = state_->tables[p];
  if (!table) {
    table = std::make_unique<nccl::Api>();
    fill_nccl(*state_, p, table->nccl);
    fill_cuda(*state_, p, table->cuda);
  }
  return *table;
}

void NcclDouble::fail_call(int p, const std::string& name, int code, int after) {
  const std::lock_guard hold(state_->mutex);
  state_->faults[{p, name}] = {code, after};
}

void NcclDouble::async_error(int p, int code) {
  const std::lock_guard hold(state_->mutex);
  for (auto& [handle, comm] : state_->comms) {
    if (comm->process == p) comm->error = code;
  }
}

void NcclDouble::one_gpu() {
  const std::lock_guard hold(state_->mutex);
  state_->one_gpu = true;
}

void NcclDouble::hold_queries(int p, std::shared_future<void> until) {
  const std::lock_guard hold(state_->mutex);
  state_->held[p] = std::move(until);
}

void NcclDouble::hang(int p) {
  const std::lock_guard hold(state_->mutex);
  for (auto& [handle, comm] : state_->comms) comm->hangs = comm->hangs || comm->process == p;
}

void NcclDouble::begin_capture(int p, Stream stream) {
  auto capture = std::make_shared<Capture>();
  DoubleStream& on = state_->stream_of(p, stream);
  capture->origin = &on;
  capture->streams.insert(&on);
  on.set_capture(capture);
  const std::lock_guard hold(state_->mutex);
  state_->captures.insert(std::move(capture));
}

std::function<void()> NcclDouble::end_capture(int p, Stream stream) {
  DoubleStream& on = state_->stream_of(p, stream);
  const auto capture = on.capture();
  for (void* part : capture->streams) static_cast<DoubleStream*>(part)->set_capture(nullptr);
  {
    const std::lock_guard hold(state_->mutex);
    state_->captures.erase(capture);
  }
  bool whole = !capture->broken && capture->memory.empty();
  for (const auto& [part, tasks] : capture->enqueued) {
    whole = whole && (part == capture->origin || capture->joined[capture->origin][part] == tasks);
  }
  if (!whole) return nullptr;
  return [&on, capture] {
    on.enqueue([capture] {
      for (const auto& task : capture->tasks) task();
    });
  };
}

void NcclDouble::on_stream(int p, Stream stream, std::function<void()> task) {
  state_->stream_of(p, stream).enqueue(std::move(task));
}

std::vector<std::string> NcclDouble::misuse() const {
  const std::lock_guard hold(state_->mutex);
  return state_->misuse;
}

int NcclDouble::calls(int p, const std::string& name) const {
  const std::lock_guard hold(state_->mutex);
  const auto found = state_->calls.find({p, name});
  return found == state_->calls.end() ? 0 : found->second;
}

void NcclDouble::set_hosts(std::vector<int> hosts) {
  const std::lock_guard hold(state_->mutex);
  state_->hosts = std::move(hosts);
  state_->sent.clear();
}

std::size_t NcclDouble::sent_bytes(int from_host, int to_host) const {
  const std::lock_guard hold(state_->mutex);
  const auto found = state_->sent.find({from_host, to_host});
  return found == state_->sent.end() ? 0 : found->second;
}

std::size_t NcclDouble::most_bytes(int p) const {
  return state_->recorder(p).most_bytes();
}

int NcclDouble::moves_beside_folds(int p) const {
  return state_->recorder(p).moves_beside_folds();
}

int NcclDouble::threads(int p) const {
  const std::lock_guard hold(state_->mutex);
  const auto found = state_->threads.find(p);
  return found == state_->threads.end() ? 0 : found->second;
}

std::string NcclDouble::leaked() const {
  const std::lock_guard hold(state_->mutex);
  std::string text;
  const auto add = [&](std::size_t n, const char* what) {
    if (n != 0) text += std::to_string(n) + " " + what + " ";
  };
  add(state_->streams.size(), "streams");
  add(state_->events.size(), "events");
  add(state_->memory.size(), "allocations");
  add(state_->registrations.size(), "registrations");
  add(state_->comms.size(), "communicators");
  return text;
}

}  // namespace troupe::collectives::testing
