#include "actors/train/run.hpp"

#include <deque>

#include "actors/train/interrupts.hpp"

namespace troupe::train {
namespace {

/// How often a signal is looked for.
constexpr Duration kLook = std::chrono::milliseconds(100);
constexpr Duration kEnds = std::chrono::seconds(10);

}  // namespace

struct Run::Parts {
  Parts(const DriverSession& on, RunOptions options, Reporting how)
      : session(on),
        reporting(std::move(how)),
        driver(session.spawn<TrainDriver>({.here = true}, std::move(options))),
        result(driver.call<&TrainDriver::run>()),
        unread(reporting.first.begin(), reporting.first.end()) {}

  const DriverSession& session;
  Reporting reporting;
  ActorHandle<TrainDriver> driver;
  Future<RunResult> result;
  std::deque<report::Event> unread;
  std::optional<Future<std::vector<report::Event>>> asked;
  bool over = false;    ///< the driver has no more events
  bool waited = false;  ///< the result was asked for

  void tell(const report::Event& event) {
    for (auto& sink : reporting.sinks) {
      if (const auto taken = sink->take(event); !taken) warn(taken.error().message());
    }
    if (reporting.on_event) reporting.on_event(event);
  }
  /// The job's driver lives in this program, and so does its link to the cluster: its node.
  std::vector<report::Event> take_asked() try {
    return std::exchange(asked, std::nullopt)->get();
  } catch (const ActorDied& died) {
    throw TaskFailed(
        {ErrorCode::kTaskFailed, "the job is lost",
         "the node that this program was joined to is gone: " + died.info().why,
         reporting.checkpoints ? "run it again with resume" : "run it again, with a checkpoint folder"});
  }
  void warn(const std::string& text) {
    const report::Event warning = report::Warning{text};
    for (auto& sink : reporting.sinks) (void)sink->take(warning);
    if (reporting.on_event) reporting.on_event(warning);
  }
  /// All pieces, or nothing and a warning: a job that is done does not fail for want of them.
  wire::Bytes take_weights() try {
    wire::Bytes all;
    for (wire::Bytes piece; all.empty() || !piece.empty(); all.insert(all.end(), piece.begin(), piece.end()))
      piece = driver.call<&TrainDriver::weights>(all.size()).get(kEnds);
    return all;
  } catch (const Error& error) {
    warn("the weights did not come back: " + std::string(error.what()));
    return {};
  }
};

Run::Run(const DriverSession& session, RunOptions options, Reporting reporting)
    : parts_(std::make_unique<Parts>(session, std::move(options), std::move(reporting))) {}

Run::Run(Run&& other) noexcept = default;

Run& Run::operator=(Run&& other) noexcept {
  std::swap(parts_, other.parts_);
  return *this;
}

Run::~Run() {
  if (parts_ == nullptr) return;
  try {
    parts_->driver.call<&TrainDriver::abandon>("its handle is gone").get(kEnds);
    parts_->session.kill(parts_->driver, "the run is over");
  } catch (const Error&) {
    // The driver, or the cluster, is gone already.
  }
}

std::optional<report::Event> Run::next_event(Duration timeout) {
  Parts& p = *parts_;
  if (p.unread.empty() && !p.over) {
    if (!p.asked) p.asked = p.driver.call<&TrainDriver::next_events>();
    if (!p.asked->state()->wait(timeout)) return {};
    auto events = p.take_asked();
    p.over = events.empty();
    p.unread.assign(std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
  }
  if (p.unread.empty()) return {};
  report::Event event = std::move(p.unread.front());
  p.unread.pop_front();
  p.tell(event);
  return event;
}

bool Run::is_over() const {
  return parts_->over && parts_->unread.empty();
}

void Run::stop() const {
  parts_->driver.tell<&TrainDriver::stop>();
}

RunResult Run::wait() {
  if (std::exchange(parts_->waited, true))
    throw BadConfig("a run was waited for twice", "its result was given to who waited first",
                    "keep the result");
  const Interrupts interrupts(parts_->reporting.handle_signals);
  bool told = false;
  while (!is_over()) {
    if (interrupts.signal() != 0 && !std::exchange(told, true)) stop();
    next_event(kLook);
  }
  parts_->reporting.folder.reset();
  RunResult result = parts_->result.get(kEnds);
  result.signal = result.stopped ? interrupts.signal() : 0;
  if (parts_->reporting.return_weights && !result.state_hash.empty()) result.weights = parts_->take_weights();
  parts_->driver.tell<&TrainDriver::abandon>("its result was taken");  // the trainers go, if the handle stays
  parts_->reporting.sinks.clear();  // what they hold is flushed, and a bar is cleared
  return result;
}

}  // namespace troupe::train
