#include "collectives/gloo/gloo_group.hpp"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string_view>

#include "collectives/gloo/gloo_calls.hpp"
#include "collectives/gloo/pipe_signal.hpp"
#include "collectives/gloo/task_thread.hpp"
#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

/// Messages in flight each have a thread that waits for them: Gloo cannot be asked whether one has arrived.
constexpr std::size_t kMaxMessages = 256;
constexpr std::uint8_t kMessageSlot = 0x40;  // Gloo's collectives have 1 to 8

/// Our rendezvous as Gloo wants it.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(collectives::Store& rendezvous, Duration timeout) : rendezvous_(rendezvous), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    rendezvous_.set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = rendezvous_.get(key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) (void)rendezvous_.get(key, timeout_);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);
  }

 private:
  collectives::Store& rendezvous_;
  Duration timeout_;
};

/// What operations in flight need, also after their group is gone.
struct Lifeline {
  GlooSite site;
  std::shared_ptr<AbortFlag> flag;
  int rank = 0;
  Duration timeout{};
};

std::chrono::milliseconds timeout_of(const Lifeline& link, const Op& op) {
  if (op.timeout == Duration::zero()) return link.site.timeout;
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::duration_cast<std::chrono::milliseconds>(op.timeout));
}

/// Runs `body`, and gives what Gloo throws our types. The group is over after any of it, for all ranks.
template <class Body>
void guarded(const Lifeline& link, const Op& op, Body body) {
  link.flag->check();
  const PipeSignalGuard guard;
  try {
    body();
  } catch (const Error& e) {  // ranks called different operations
    link.flag->set("rank " + std::to_string(link.rank) + ": " + e.info().why);
    close_pairs(link.site);
    throw link.flag->error();
  } catch (const std::exception& e) {
    const std::string_view text = e.what();
    if (text.find("Timed out waiting") != std::string_view::npos) {
      const Timeout error = time_out(*link.flag, link.rank, op, timeout_of(link, op),
                                     "Gloo does not say which rank it waits for");
      close_pairs(link.site);
      throw Timeout(error);
    }
    link.flag->set("rank " + std::to_string(link.rank) + ": " + numbered(op) + ": Gloo failed: " + e.what());
    close_pairs(link.site);
    throw link.flag->error();
  }
}

class GlooGroup final : public LibraryGroup {
 public:
  GlooGroup(GlooGroupOptions options, GlooSite site)
      : LibraryGroup({.backend = "gloo",
                      .rank = options.rank,
                      .size = options.size,
                      .generation = options.generation,
                      .leaves = std::move(options.leaves),
                      .name = options.name}),
        link_(std::make_shared<Lifeline>(
            Lifeline{std::move(site), shared_flag(), options.rank, options.timeout})),
        collectives_(std::make_unique<TaskThread>()) {}

  ~GlooGroup() override {
    bool busy = !collectives_->idle();
    for (const auto& thread : messages_) busy = busy || !thread->idle();
    if (busy) stop("rank " + std::to_string(rank()) + " left the group with operations in flight");
    collectives_.reset();
    messages_.clear();
  }

  /// The thread of the collectives may still be at their buffers. Nothing comes for messages without
  /// connections: their threads, which may wait until they are out of time, need not be waited for.
  void await_quiet() override {
    if (!flag().is_set()) return;
    close_pairs(link_->site);
    if (collectives_->await_idle(std::chrono::steady_clock::now() + link_->timeout)) return;
    throw Timeout({ErrorCode::kTimeout, "operations of an aborted group have not ended",
                   "Gloo was at them for " + seconds_text(link_->timeout) + " more",
                   "keep their buffers until the group is gone"});
  }

 private:
  void stop(const std::string& reason) override {
    if (flag().set(reason)) close_pairs(link_->site);
  }

  std::shared_ptr<Work> launch_one(const Op& op) override {
    if (is_message(op.kind)) return message(op);
    std::shared_ptr<ExactReduction> reduction;
    // Gloo's own reductions know no trees of leaves and no factors, and only an old interface scatters.
    const bool always = op.kind == OpKind::kAllReduceTree || op.kind == OpKind::kReduceScatter ||
                        op.kind == OpKind::kReduceScatterV || op.how.op == ReduceOp::kPremulSum;
    if (reduces(op.kind) && (always || op.how.exact)) reduction = exact(op);
    return collectives_->run([link = link_, op, reduction] {
      guarded(*link, op, [&] {
        const GlooSite site{link->site.context, timeout_of(*link, op)};
        compare_on(site, op);
        run_gloo(site, op, reduction.get());
      });
    });
  }

  /// Posts the message at once, so that messages overtake each other, and lets a free thread wait for it.
  std::shared_ptr<Work> message(const Op& op) {
    TaskThread& thread = free_thread();
    const bool sends = op.kind == OpKind::kSend;
    std::shared_ptr<gloo::transport::UnboundBuffer> buffer;
    // Gloo sends nothing for an empty message, and its receiver waits: a byte stands for it.
    const auto stand_in = op.bytes() == 0 ? std::make_shared<std::byte>() : nullptr;
    void* const data = stand_in ? stand_in.get() : sends ? op.input.data : op.output.data;
    guarded(*link_, op, [&] {
      const auto slot = gloo::Slot::build(kMessageSlot, op.tag);
      buffer = link_->site.context->createUnboundBuffer(data,
                                                        std::max<std::size_t>(op.bytes(), sizeof(*stand_in)));
      if (sends) {
        buffer->send(op.peer, slot);
      } else if (op.peer != kAnyRank) {
        buffer->recv(op.peer, slot);
      } else {
        std::vector<int> others;
        for (int r = 0; r < size(); ++r) {
          if (r != rank()) others.push_back(r);
        }
        buffer->recv(others, slot);
      }
    });
    const auto source = std::make_shared<std::atomic<int>>(-1);
    return thread.run(
        [link = link_, op, buffer, stand_in, sends, source] {
          guarded(*link, op, [&] {
            int from = -1;
            const auto timeout = timeout_of(*link, op);
            sends ? buffer->waitSend(nullptr, timeout) : buffer->waitRecv(&from, timeout);
            *source = from;
          });
        },
        source);
  }

  TaskThread& free_thread() {
    for (const auto& thread : messages_) {
      if (thread->idle()) return *thread;
    }
    if (messages_.size() == kMaxMessages) {
      throw_error({ErrorCode::kLimit, "too many messages are in flight",
                   "the backend gloo has a thread for each, and no more than " + std::to_string(kMaxMessages),
                   "wait for some"});
    }
    return *messages_.emplace_back(std::make_unique<TaskThread>());
  }

  std::shared_ptr<Lifeline> link_;
  std::unique_ptr<TaskThread> collectives_;
  std::vector<std::unique_ptr<TaskThread>> messages_;
};

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw BadConfig("cannot make a process group of the backend gloo", std::move(why), std::move(todo));
}

GlooSite connect(const GlooGroupOptions& options) {
  using std::chrono::milliseconds;
  const PipeSignalGuard guard;  // also for Gloo's own thread, which starts here
  const auto timeout = std::chrono::duration_cast<milliseconds>(options.timeout);
  gloo::transport::tcp::attr address(options.host.c_str());
  address.iface = options.interface;
  auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
  context->setTimeout(std::max(milliseconds(1), timeout / 5));  // Gloo waits five times as long to connect
  GlooStore store(*options.rendezvous, options.timeout);
  try {
    auto device = gloo::transport::tcp::CreateDevice(address);
    context->connectFullMesh(store, device);
  } catch (const Error&) {
    throw;  // of the rendezvous
  } catch (const std::exception& e) {
    const bool late = std::string_view(e.what()).find("timeout") != std::string_view::npos;
    throw_error({late ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
                 "rank " + std::to_string(options.rank) + " cannot connect its Gloo group", e.what(),
                 "see that all ranks run, and that host or interface is an address they can reach"});
  }
  context->setTimeout(timeout);
  return {std::move(context), timeout};
}

}  // namespace

bool has_gloo() noexcept {
  return true;
}

std::unique_ptr<ProcessGroup> make_gloo_group(GlooGroupOptions options) {
  options.leaves = checked_leaves("gloo", options.rank, options.size, std::move(options.leaves));
  if (options.timeout < std::chrono::milliseconds(1)) {
    refuse("the timeout is shorter than a millisecond", "give it in nanoseconds");
  }
  if (options.rendezvous == nullptr) refuse("there is no rendezvous", "give a store that all ranks reach");
  GlooSite site = connect(options);
  return std::make_unique<GlooGroup>(std::move(options), std::move(site));
}

}  // namespace troupe::collectives
