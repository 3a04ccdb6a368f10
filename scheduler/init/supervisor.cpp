#include "scheduler/init/supervisor.hpp"

#include <poll.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/link/socket/first_exchange.hpp"

namespace troupe {
namespace {

/// A child loads its libraries, LibTorch among them, on a machine that may be busy; a node waits for the
/// head.
constexpr Duration kNodeComesUp = std::chrono::seconds(60);
constexpr Duration kKilled = std::chrono::seconds(10);  ///< more than the kernel takes, on any machine
constexpr Duration kLook = std::chrono::seconds(1);     ///< at roles that must not be silent
constexpr Duration kLooksAgain = std::chrono::milliseconds(20);  ///< at a role that may not start yet

}  // namespace

void end_child(const Child& child, Duration grace) {
  if (!wait_ended(child, grace)) {
    signal_child(child, SIGKILL);
    wait_ended(child, kKilled);
  }
  reap(child);
}

Supervisor::~Supervisor() {
  std::vector<std::size_t> all(entries_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  end(all, Duration(0));
}

std::size_t Supervisor::add(Role role) {
  auto entry = std::make_unique<Entry>();
  entry->restarts = Restarts(role.policy);
  entry->role = std::move(role);
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

void Supervisor::run(int wake, const std::function<bool()>& done) {
  while (!failure_) {
    start_due(clock_.now());
    if (failure_ || done()) return;
    std::vector<pollfd> waits{{wake, POLLIN, 0}, {watched_, POLLIN, 0}};
    for (const auto& entry : entries_) {
      waits.push_back({entry->child ? entry->child->pidfd.get() : -1, POLLIN, 0});
      const bool linked = entry->child && entry->child->link.fd() >= 0;
      const short out = linked && entry->child->link.wants_write() ? POLLOUT : 0;
      waits.push_back({linked ? entry->child->link.fd() : -1, static_cast<short>(POLLIN | out), 0});
    }
    if (::poll(waits.data(), waits.size(), wait_ms(clock_.now())) < 0) continue;
    const Instant now = clock_.now();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = *entries_[i];
      if (waits[2 * i + 3].revents != 0) read_link(entry, now);
      if (waits[2 * i + 2].revents != 0) died(entry, now);
      if (entry.child && !entry.restarts.is_up() && now - entry.started > kNodeComesUp) {
        log(LogLevel::kWarning, entry.role.name + " did not come up within 60 s; it is killed");
        signal_child(*entry.child, SIGKILL);
        entry.started = now;  // its pidfd tells the rest
      }
    }
    look_for_silence(now);
    if (waits[1].revents != 0 && watched_ == waits[1].fd) std::exchange(on_watched_, {})();
    if (waits[0].revents != 0) return;
  }
}

void Supervisor::look_for_silence(Instant now) {
  if (now < next_look_) return;
  next_look_ = now + kLook;
  for (const auto& entry : entries_) {
    const Duration most = entry->role.silence;
    if (most == Duration(0) || !entry->child || !entry->restarts.is_up()) continue;
    if (++entry->silent_looks != most / kLook + 1) continue;
    log(LogLevel::kWarning, entry->role.name + " hangs or is stopped: it has given no sign of life for " +
                                std::to_string(most / std::chrono::seconds(1)) + " s; it is killed");
    signal_child(*entry->child, SIGKILL);  // its pidfd tells the rest
  }
}

void Supervisor::watch(int fd, std::function<void()> then) {
  watched_ = fd;
  on_watched_ = std::move(then);
}

void Supervisor::start_due(Instant now) {
  for (const auto& entry : entries_) {
    if (entry->child || !entry->due || *entry->due > now) continue;
    if (!entry->role.may_start()) continue;
    entry->due.reset();
    entry->started = now;
    entry->silent_looks = 0;
    try {
      entry->child.emplace(entry->role.start());
      entry->pid = entry->child->pid;
    } catch (const Error& error) {  // nothing of it ran: the disk is full, or the head that it joins is away
      failed(*entry, clock_.now(), error.info(), Restarts::Failed::kStart);
    }
  }
}

int Supervisor::wait_ms(Instant now) const {
  Duration wait = std::chrono::seconds(60);
  for (const auto& entry : entries_) {
    if (entry->due) wait = std::min(wait, std::max(*entry->due - now, kLooksAgain));
    if (entry->child && entry->role.silence > Duration(0)) wait = std::min(wait, next_look_ - now);
    if (entry->child && !entry->restarts.is_up()) wait = std::min(wait, entry->started + kNodeComesUp - now);
  }
  return static_cast<int>(std::max(wait, Duration(0)) / std::chrono::milliseconds(1)) + 1;
}

void Supervisor::read_link(Entry& entry, Instant now) {
  while (entry.child && entry.child->link.fd() >= 0) {
    entry.child->link.flush();
    Message received;
    const auto got = entry.child->link.receive(received);
    if (got == SocketLink::Got::kNothing) return;
    if (got == SocketLink::Got::kClosed) {
      entry.child->link = {};  // it is about to die, and its pidfd tells how
      return;
    }
    entry.silent_looks = 0;
    auto message = wire::decode_control(received.header, received.body);
    if (!message) continue;
    if (const auto* ready = std::get_if<wire::Ready>(&*message)) {
      take_up(entry, ready->address, now);
    } else if (auto* not_ready = std::get_if<wire::NotReady>(&*message)) {
      not_up(entry, std::move(not_ready->error));
    } else {
      entry.role.on_message(*std::move(message));
    }
  }
}

void Supervisor::take_up(Entry& entry, const std::string& address, Instant now) {
  try {
    entry.role.on_ready(*entry.child, address);
    entry.restarts.up(now);
  } catch (const Error& error) {
    not_up(entry, error.info());
  }
}

void Supervisor::not_up(Entry& entry, ErrorInfo why) {
  entry.not_ready = std::move(why);
  signal_child(*entry.child, SIGKILL);  // its pidfd tells the rest
}

void Supervisor::died(Entry& entry, Instant now) {
  if (!entry.child) return;
  const std::string how = reap(*entry.child);
  if (how.empty()) return;
  entry.child.reset();
  const auto said = std::exchange(entry.not_ready, std::nullopt);
  if (said) return failed(entry, now, *said, Restarts::Failed::kReady);
  failed(entry, now, ErrorInfo{ErrorCode::kUnavailable, how, "", ""}, Restarts::Failed::kRunning);
}

void Supervisor::failed(Entry& entry, Instant now, const ErrorInfo& why, Restarts::Failed at) {
  if (ending_) return;
  if (entry.role.is_over()) return entry.role.on_death(why.message());
  const std::string& name = entry.role.name;
  const bool was_up = entry.restarts.is_up();
  const auto [wait, why_not, is_permanent] = entry.restarts.failed(now, name, why, at);
  entry.role.on_death(why.message());
  if (wait) {
    entry.due = now + *wait;
    return log(LogLevel::kWarning,
               name + (was_up ? " died (" : " did not come up (") + why.message() + "); it is started again");
  }
  if (!is_permanent) log(LogLevel::kError, why_not.message());
  if (entry.role.vital && !failure_) failure_ = why_not;
}

bool Supervisor::all_up() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry->restarts.is_up(); });
}

bool Supervisor::tell(std::size_t role, const wire::Control& message) {
  auto& child = entries_.at(role)->child;
  if (!child || child->link.fd() < 0) return false;
  wire::FrameHeader header;
  const wire::Bytes body = wire::encode_control(message, header);
  return child->link.send(header, body) == Sent::kQueued;
}

void Supervisor::end(const std::vector<std::size_t>& roles, Duration grace) {
  for (const std::size_t role : roles) {
    entries_.at(role)->due.reset();
    tell(role, wire::Leave{"it was told to end"});
    if (entries_[role]->child) entries_[role]->child->link = {};  // it leaves when its launcher is gone
  }
  const Instant deadline = clock_.now() + grace;
  for (const std::size_t role : roles) {
    auto& child = entries_[role]->child;
    if (!child) continue;
    end_child(*child, std::max(deadline - clock_.now(), Duration(0)));
    child.reset();
  }
}

}  // namespace troupe
