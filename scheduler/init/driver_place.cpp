#include "scheduler/init/driver_place.hpp"

#include <climits>

#include "runtime/core/futex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/link/socket/first_exchange.hpp"

namespace troupe {
namespace {

constexpr Duration kConfigured = std::chrono::seconds(30);
constexpr const char* kNodeGone = "the node of its program is gone";

}  // namespace

DriverPlace::DriverPlace(std::string job, NextLink next_link)
    : job_(std::move(job)), next_link_(std::move(next_link)), printer_([this](bool on) {
        if (Process* process = now_.load(std::memory_order_acquire)) process->hold_output(on);
      }) {
  std::promise<void> taken;
  auto first = taken.get_future();
  keeper_ = std::thread([this, taken = std::move(taken)]() mutable { take_first(std::move(taken)); });
  try {
    first.get();
  } catch (...) {
    keeper_.join();
    throw;
  }
}

DriverPlace::~DriverPlace() {
  leaving_ = true;
  lost();
  if (keeper_.joinable()) keeper_.join();
  printer_.finish();
  lives_.clear();  // their threads still tell us things
}

/// In the keeper's thread, as every later place: init() may be called in a thread that ends.
void DriverPlace::take_first(std::promise<void> taken) {
  try {
    auto link = next_link_();
    if (!link)
      throw Unavailable({ErrorCode::kUnavailable, "the cluster has no place for this driver", "it ends", ""});
    take(*std::move(link));
  } catch (...) {
    return taken.set_exception(std::current_exception());
  }
  taken.set_value();
  keep();
}

void DriverPlace::take(SocketLink link) {
  auto received = receive_control(link, kConfigured);
  const auto* config = received ? std::get_if<wire::Configure>(&received->message) : nullptr;
  if (config == nullptr)
    throw Unavailable({ErrorCode::kUnavailable, "the node gave this driver no place",
                       received ? "it said something else" : received.error().why, ""});
  auto process = std::make_unique<Process>(
      ProcessConfig{config->node, config->process, {}, 0, config->label, config->host, config->package},
      std::move(link),
      Process::Handlers{[this] { lost(); }, [this](const wire::Output& output) { printer_.print(output); }});
  process->register_job(job_, kConfigured);
  now_.store(process.get(), std::memory_order_release);
  lives_.push_back(std::move(process));
  printer_.repeat_hold();
}

void DriverPlace::lost() {
  if (!leaving_)
    log(LogLevel::kWarning, "this driver's node is gone: its actors are dead, and what is under way fails");
  lost_.fetch_add(1);
  futex_wake(lost_, INT_MAX);
}

void DriverPlace::keep() {
  std::uint32_t handled = 0;
  for (;;) {
    for (std::uint32_t now = lost_; now == handled; now = lost_)
      futex_wait(lost_, now, std::chrono::seconds(60));
    if (leaving_) return;
    handled = lost_;
    Process& former = now();
    former.stop_actors(kNodeGone);
    if (!take_next()) return;
    former.stop_actors(kNodeGone);  // who was spawned in between
  }
}

bool DriverPlace::take_next() {
  for (;;) {
    std::optional<SocketLink> link;
    try {
      link = next_link_();
    } catch (const Error& error) {
      log(LogLevel::kError, std::string("this driver gets no other node: ") + error.what());
      return false;
    }
    if (!link || leaving_) return false;
    try {
      take(*std::move(link));
      log(LogLevel::kWarning, "this driver has a new node: spawns work again");
      return true;
    } catch (const Error& error) {
      log(LogLevel::kWarning, std::string("the new node did not take this driver: ") + error.what());
    }
  }
}

void DriverPlace::leave(Duration timeout) {
  leaving_ = true;
  now().end_cluster(timeout);
}

}  // namespace troupe
