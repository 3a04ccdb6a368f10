#include "tests/collectives/nccl_ranks.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include "tests/support/threads.hpp"

namespace troupe::collectives::testing {
namespace {
using namespace std::chrono_literals;

constexpr Duration kTimeout = 60s;  ///< of operations and exchanges
/// An operation that another rank never joins ends by its timeout, and then the communicators have to be
/// stopped: only a stream that outlasts all that is stuck.
constexpr Duration kStreamEnds = kTimeout + 60s;

}  // namespace

NcclCluster::Bulletin& NcclCluster::bulletin(std::uint32_t counter) {
  const std::lock_guard hold(mutex_);
  Bulletin& found = bulletins_[counter];
  if (!found.region) {
    found.region = std::make_shared<SharedMemory>(SharedMemory::create("word", 4096, false).value());
  }
  return found;
}

std::shared_ptr<SharedMemory> NcclCluster::region(std::uint32_t counter) {
  return bulletin(counter).region;
}

NcclGroupOptions NcclCluster::options(int p, int rank, int size, std::uint32_t counter) {
  NcclGroupOptions options;
  options.rank = rank;
  options.size = size;
  options.device = p;
  options.generation = {1, counter};
  options.timeout = kTimeout;
  options.host = std::make_shared<WordGroup>(rank, size, options.generation, region(counter));
  options.exchange = [this, rank, size, counter](const std::string& mine,
                                                 const NcclGroupOptions::Answer& answer) {
    Bulletin& at = bulletin(counter);
    std::unique_lock hold(mutex_);
    at.said[rank] = mine;
    changed_.notify_all();
    const auto wait_for = [&](auto holds) {
      if (!changed_.wait_for(hold, kTimeout, [&] { return at.closed || holds(); }) || at.closed)
        throw std::runtime_error("the exchange does not end");
    };
    if (rank == 0) {
      wait_for([&] { return static_cast<int>(at.said.size()) == size; });
      std::vector<std::string> said;
      for (const auto& [r, text] : at.said) said.push_back(text);
      try {
        at.answer = answer(said);
      } catch (...) {
        at.closed = true;
        changed_.notify_all();
        throw;
      }
      changed_.notify_all();
    }
    wait_for([&] { return at.answer.has_value(); });
    return *at.answer;
  };
  return options;
}

NcclRank::NcclRank(NcclCluster& of, int process) : cluster(of), p(process) {
  const auto& cuda = cluster.library.api(p).cuda;
  int before = 0;
  cuda.cudaGetDevice(&before);
  cuda.cudaSetDevice(p);
  cuda.cudaStreamCreate(&stream);
  cuda.cudaSetDevice(before);  // so that the group has to choose its device by itself
}

NcclRank::~NcclRank() {
  group.reset();
  cluster.library.api(p).cuda.cudaStreamDestroy(stream);
}

void NcclRank::make(const NcclGroupOptions& options) {
  group = make_nccl_group(options, cluster.library.api(p));
}

Buffer NcclRank::put_bytes(const void* data, std::size_t count, std::size_t element, DType dtype) {
  memory_.push_back(std::make_unique<std::vector<std::byte>>(count * element, std::byte{0xee}));
  std::byte* to = memory_.back()->data();
  std::vector<std::byte> from(count * element);
  if (!from.empty()) std::memcpy(from.data(), data, from.size());
  cluster.library.on_stream(p, stream, [to, from] {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  });
  return {to, count, dtype, {DeviceKind::kCuda, p}, stream};
}

std::vector<std::byte> NcclRank::get_bytes(const void* data, std::size_t bytes) {
  const auto out = std::make_shared<std::vector<std::byte>>(bytes);
  cluster.library.on_stream(p, stream, [out, data] {
    if (!out->empty()) std::memcpy(out->data(), data, out->size());
  });
  synchronize();
  return *out;
}

void NcclRank::synchronize() {
  const auto reached = std::make_shared<std::promise<void>>();
  cluster.library.on_stream(p, stream, [reached] { reached->set_value(); });
  if (reached->get_future().wait_for(kStreamEnds) != std::future_status::ready)
    throw std::runtime_error("the stream of process " + std::to_string(p) + " does not end");
}

void run_specs(NcclRank& rank, const std::vector<OpSpec>& specs, bool in_place) {
  ProcessGroup& group = *rank.group;
  const int me = group.rank(), size = group.size();
  for (const OpSpec& spec : specs) {
    const auto wanted = output_of(spec, me, size);
    const Bytes input = input_of(spec, me, size);
    const std::size_t element = element_size(spec.dtype), bytes = wanted ? wanted->size() : 0;
    if (spec.kind == OpKind::kAllReduceTree) {
      TreeBuffer tree = group.allocate_tree(spec.count, spec.dtype);
      tree.stream = rank.stream;
      const auto partials = partials_of(spec, group.leaves());
      rank.cluster.library.on_stream(rank.p, rank.stream, [tree, partials] {
        for (std::size_t i = 0; i < partials.size() && !partials[i].empty(); ++i)
          std::memcpy(tree.partials[i], partials[i].data(), partials[i].size());
      });
      group.all_reduce_tree(tree, spec.how)->wait();
      require(rank.get_bytes(tree.partials[0], bytes) == *wanted, to_string(spec));
      continue;
    }
    const Buffer in = rank.put_bytes(input.data(), input.size() / element, element, spec.dtype);
    const bool inside = in_place && bytes < input.size() &&
                        (spec.kind == OpKind::kReduceScatter || spec.kind == OpKind::kScatter);
    auto* const from = static_cast<std::byte*>(in.data);
    std::byte* to = from;
    if (inside) {
      to += static_cast<std::size_t>(me) * bytes;
    } else if (!one_buffer(spec)) {
      to = static_cast<std::byte*>(
          rank.put_bytes(Bytes(bytes).data(), bytes / element, element, spec.dtype).data);
    }
    call(group, spec, from, to, in)->wait();
    require(!wanted || rank.get_bytes(to, bytes) == *wanted, to_string(spec));
    if (!inside && !(one_buffer(spec) && wanted))
      require(rank.get_bytes(from, input.size()) == input, "the input of " + to_string(spec));
  }
}

void finish(Work& work) {
  while (!work.wait_for(1s)) {
  }
}

void reduce(NcclRank& rank) {
  finish(*rank.group->all_reduce(rank.put(std::vector<float>(100, 1)), ReduceOp::kSum));
}

std::vector<std::string> run_nccl_threads(NcclCluster& cluster, int ranks, const NcclBody& body,
                                          const std::function<void(NcclGroupOptions&)>& adjust) {
  return test::run_on_threads(static_cast<std::size_t>(ranks), [&](int r) {
    NcclRank rank(cluster, r);
    auto options = cluster.options(r, r, ranks);
    if (adjust) adjust(options);
    rank.make(options);
    try {
      body(rank);
    } catch (const std::exception& e) {
      if (rank.group) rank.group->abort(e.what());  // the others need not wait for this one
      throw;
    }
  });
}

void run_nccl(int ranks, const NcclBody& body, const std::function<void(NcclGroupOptions&)>& adjust) {
  NcclCluster cluster;
  for (const auto& what : run_nccl_threads(cluster, ranks, body, adjust)) {
    if (!what.empty()) throw std::runtime_error(what);
  }
  check_double(cluster.library);
}

std::vector<std::string> run_two(NcclCluster& cluster, const NcclBody& body,
                                 const std::function<void(NcclGroupOptions&)>& adjust) {
  auto thrown = run_nccl_threads(cluster, 2, body, adjust);
  check_double(cluster.library);
  return thrown;
}

void check_none(const std::vector<std::string>& thrown) {
  for (const auto& what : thrown) CHECK(what == "");
}

std::shared_ptr<nccl::Communicator> lone_communicator(NcclDouble& library) {
  const auto& api = library.api(0);
  api.cuda.cudaSetDevice(0);
  auto made = std::make_shared<nccl::Communicator>(nccl::Caller{&api, 0});
  nccl::UniqueId id{};
  REQUIRE(api.nccl.ncclGetUniqueId(&id) == nccl::kNcclSuccess);
  made->init({60s, [] {}}, 1, 0, id);
  return made;
}

void check_double(const NcclDouble& library) {
  for (const auto& what : library.misuse()) throw std::runtime_error("misuse: " + what);
  // What was given up while the library was in it is given back by a thread aside, once the library lets it
  // go.
  std::string leaked = library.leaked();
  for (int i = 0; i < 1000 && !leaked.empty(); ++i, leaked = library.leaked()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!leaked.empty()) throw std::runtime_error("leaked: " + leaked);
}

}  // namespace troupe::collectives::testing
