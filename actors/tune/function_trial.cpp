#include "actors/tune/function_trial.hpp"

#include <condition_variable>
#include <exception>
#include <thread>

#include "runtime/core/quiet_thread.hpp"
#include "runtime/host/registry.hpp"

namespace troupe::tune {
namespace detail {

/// Whose turn it is: the function's, or that of whoever waits for its report.
struct Turns {
  std::mutex mutex{};  ///< guards the rest
  std::condition_variable changed{};
  bool functions = true;
  bool over = false;  ///< it has returned, or thrown
  bool stopping = false;
  std::optional<report::Metrics> reported{};
  std::exception_ptr thrown{};

  void finish(std::optional<report::Metrics> last, std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    over = true;
    functions = false;
    if (!stopping) reported = std::move(last);
    thrown = std::move(error);
    changed.notify_all();
  }
};

ErrorInfo thrown_by(std::string_view function) {
  ErrorInfo info = describe_exception(function);
  info.origin.clear();  // its trial is known
  return info;
}

}  // namespace detail

void Reporter::report(report::Metrics metrics) {
  std::unique_lock lock(turns_.mutex);
  if (turns_.stopping) throw TrialStopped();
  lock.unlock();
  if (before_) before_();
  lock.lock();
  turns_.reported = std::move(metrics);
  turns_.functions = false;
  turns_.changed.notify_all();
  turns_.changed.wait(lock, [this] { return turns_.functions || turns_.stopping; });
  if (turns_.stopping) throw TrialStopped();
}

void Reporter::report(double value) {
  report(report::Metrics{{metric_, value}});
}

FunctionThread::~FunctionThread() {
  end(std::chrono::seconds(1));
}

std::optional<report::Metrics> FunctionThread::next() {
  if (turns_ == nullptr) {
    turns_ = std::make_shared<detail::Turns>();
    start_thread([task = task_, turns = turns_] {
      std::optional<report::Metrics> last;
      std::exception_ptr error;
      try {
        Reporter reporter(*turns, task->metric, task->before_report);
        last = task->function(reporter);
      } catch (const TrialStopped&) {
      } catch (...) {
        error = std::current_exception();
      }
      turns->finish(std::move(last), std::move(error));
    }).detach();  // one that never ends goes with its process
  } else {
    const std::lock_guard lock(turns_->mutex);
    turns_->functions = !turns_->over;
    turns_->changed.notify_all();
  }
  std::unique_lock lock(turns_->mutex);
  turns_->changed.wait(lock, [this] { return !turns_->functions; });
  if (turns_->thrown) std::rethrow_exception(std::exchange(turns_->thrown, nullptr));
  return std::exchange(turns_->reported, std::nullopt);
}

bool FunctionThread::end(Duration limit) {
  if (turns_ == nullptr) return true;
  std::unique_lock lock(turns_->mutex);
  turns_->stopping = true;
  turns_->changed.notify_all();
  return turns_->changed.wait_for(lock, limit, [this] { return turns_->over; });
}

}  // namespace troupe::tune
