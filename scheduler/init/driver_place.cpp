#include "scheduler/init/driver_place.hpp"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string_view>

#include "runtime/core/futex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/link/socket/first_exchange.hpp"

namespace troupe {
namespace {

constexpr Duration kConfigured = std::chrono::seconds(30);
constexpr const char* kNodeGone = "the node of its program is gone";

/// A worker's lines, each with the worker's name before it.
void print_output(const wire::Output& output) {
  std::string text;
  for (std::string_view rest = output.text; !rest.empty();) {
    const auto end = rest.find('\n');
    text.append("[").append(output.label).append("] ").append(rest.substr(0, end)).append("\n");
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(output.error ? STDERR_FILENO : STDOUT_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

DriverPlace::DriverPlace(std::string job, NextLink next_link)
    : job_(std::move(job)), next_link_(std::move(next_link)) {
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
      std::move(link), Process::Handlers{[this] { lost(); }, print_output});
  process->register_job(job_, kConfigured);
  now_.store(process.get(), std::memory_order_release);
  lives_.push_back(std::move(process));
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
