// The node's part that starts, watches and ends worker processes.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/node/node.hpp"

namespace troupe {
namespace {

/// Workers are offered to the kernel before the node, the node before the head.
constexpr int kWorkerOomScore = 500;

}  // namespace

void Node::start_actor(ActorId actor, const cluster::ActorSpec& spec) {
  if (hosts_.contains(actor)) return;  // told twice
  const wire::ByteView bytes(reinterpret_cast<const std::byte*>(spec.payload.data()), spec.payload.size());
  auto payload = wire::decode<wire::ActorPayload>(bytes);
  if (!payload) return to_head(cluster::ActorFailed{id_, actor, payload.error()});
  const auto program = program_for(actor, spec, *payload);
  if (!program) return;  // taken up again when its executable is here
  LocalProcess* process = spec.demand.isolated ? nullptr : shared_worker(spec.job);
  if (process == nullptr) {
    const std::string label = spec.demand.isolated ? payload->label : "worker";
    auto started =
        start_worker({label, spec.job, spec.demand.isolated, payload->driver, payload->package, *program});
    if (!started) return to_head(cluster::ActorFailed{id_, actor, started.error()});
    process = *started;
    if (!spec.demand.isolated) shared_workers_[spec.job] = process->id;
  }
  process->actors.emplace(actor, LocalProcess::ActorState::kStarting);
  hosts_.emplace(actor, process->id);
  wire::StartActorHere start{actor, spec.demand.isolated, payload->constructor, std::move(payload->args)};
  if (process->doorbell) {
    send(*process, start);
  } else {
    process->starts.push_back(std::move(start));
  }
}

LocalProcess* Node::shared_worker(JobId job) {
  const auto at = shared_workers_.find(job);
  LocalProcess* process = at == shared_workers_.end() ? nullptr : find(at->second);
  return process == nullptr || process->ended ? nullptr : process;
}

Result<LocalProcess*> Node::start_worker(const NewWorker& worker) {
  // First of all what may fail: a child that is started has to be watched.
  auto lock = DeathWatch::make_lock();
  if (!lock) return lock.error();
  std::vector<UniqueFd> fds;
  fds.emplace_back(::fcntl(lock->fd(), F_DUPFD_CLOEXEC, 0));
  if (!fds.front()) return io_error("cannot start a worker", errno, "raise ulimit -n");
  auto child = start_child({.role = "worker",
                            .program_fd = worker.program_fd,
                            .capture_output = true,
                            .oom_score_adj = kWorkerOomScore});
  if (!child) return child.error();
  auto process = std::make_unique<LocalProcess>();
  process->id = {SystemRandom().next()};
  process->job = worker.job;
  process->label = worker.label;
  process->package = worker.package;
  process->child = *std::move(child);
  process->isolated = worker.isolated;
  process->driver = worker.driver;
  process->lock = *std::move(lock);
  process->heard = clock_.now();
  LocalProcess* added = process.get();
  locals_.emplace(added->id, std::move(process));
  watch(*added);
  send(*added, wire::Configure{id_, added->id, worker.job, worker.label, host_, worker.package},
       std::move(fds));
  return added;
}

void Node::watch(LocalProcess& process) {
  loop_.watch(process.child.link.fd(), [this, &process](bool readable, bool writable, bool closed) {
    if (writable) flush(process);
    if (readable || closed) read_link(process);
  });
  if (process.child.pid < 0) return;
  loop_.watch(process.child.pidfd.get(), [this, &process](bool, bool, bool) { process_ended(process); });
  loop_.watch(process.child.output.get(),
              [this, &process](bool, bool, bool) { read_output(process, false); });
  loop_.watch(process.child.errors.get(), [this, &process](bool, bool, bool) { read_output(process, true); });
}

void Node::read_output(LocalProcess& process, bool errors) {
  UniqueFd& fd = errors ? process.child.errors : process.child.output;
  std::string& partial = errors ? process.partial_errors : process.partial_output;
  char buffer[64 * 1024];
  for (ssize_t got = 0; fd && (got = ::read(fd.get(), buffer, sizeof buffer)) != -1;) {
    if (got == 0) {
      loop_.forget(fd.get());
      fd.reset();
      if (!partial.empty()) forward_output(process, std::exchange(partial, {}) + "\n", errors);
      return;
    }
    std::string lines = take_whole_lines(partial, {buffer, static_cast<std::size_t>(got)});
    if (!lines.empty()) forward_output(process, std::move(lines), errors);
  }
}

void Node::read_outputs(LocalProcess& process) {
  read_output(process, false);
  read_output(process, true);
}

void Node::forward_output(LocalProcess& process, std::string text, bool errors) {
  if (errors) {
    const auto before_last = text.rfind('\n', text.size() - 2);
    process.last_error_line = text.substr(before_last == std::string::npos ? 0 : before_last + 1);
    process.last_error_line.pop_back();
  }
  to_process(process.driver, wire::Output{process.label, errors, std::move(text)});
}

/// The thread of a process that holds its lock has ended, and with it the process, as a rule.
void Node::process_ends(ProcessId id) {
  LocalProcess* process = find(id);
  if (process == nullptr || process->ended) return;
  if (const auto how = how_it_ends(process->child)) tell_end(*process, *how);
}

/// A process is gone: its pidfd says so, or the driver's link.
void Node::process_ended(LocalProcess& process) {
  const std::string how = process.child.pid > 0 ? reap(process.child) : "the driver is gone";
  const bool told = process.ended;
  if (!told) tell_end(process, how);
  if (process.child.pid > 0) {
    if (told) read_outputs(process);  // what was written last
    deaths_.remove(process.id);
    loop_.forget(process.child.pidfd.get());
    for (UniqueFd* fd : {&process.child.output, &process.child.errors}) {
      if (*fd) loop_.forget(fd->get());
    }
  }
  if (&process == driver_) {
    driver_ = nullptr;
    leave("its driver is gone");
  }
  loop_.post([this, id = process.id] {  // not now: callbacks of this turn may still hold a reference
    locals_.erase(id);
    if (leaving_) finish_leaving();
  });
}

/// Tells everybody that a process has ended, or is about to, which the kernel may take milliseconds over.
void Node::tell_end(LocalProcess& process, const std::string& how) {
  process.ended = true;
  std::string reason = process.kill_reason.empty() ? how : process.kill_reason + " (" + how + ")";
  // First of all the members of its groups leave their collectives; the rest can wait a microsecond.
  regions_.process_died(process.id, reason);
  read_outputs(process);
  if (reason.find("exit code") != std::string::npos && !process.last_error_line.empty()) {
    reason += ", last line of its output: " + process.last_error_line.substr(0, 300);
  }
  loop_.forget(process.child.link.fd());
  announce_down(process, reason);
}

void Node::announce_down(const LocalProcess& process, const std::string& reason) {
  const wire::ProcessDown down{{id_, process.id}, reason};
  to_locals(down);
  to_peers(down);
  for (const auto& [actor, state] : process.actors) {
    hosts_.erase(actor);
    if (state == LocalProcess::ActorState::kStarting) {
      to_head(cluster::ActorFailed{
          id_, actor, {ErrorCode::kActorDied, process.label + " could not be started", reason, ""}});
    } else {
      to_head(cluster::ActorDown{id_, actor, reason});
    }
  }
  for (auto at = unanswered_.begin(); at != unanswered_.end();) {
    at = at->first.first == process.id ? unanswered_.erase(at) : std::next(at);
  }
}

void Node::kill_process(LocalProcess& process, const std::string& reason) {
  if (process.child.pid < 0 || process.ended) return;
  if (process.kill_reason.empty()) process.kill_reason = reason;
  signal_child(process.child, SIGKILL);
}

void Node::kill_actor(ActorId actor, const std::string& reason) {
  LocalProcess* process = hosting(actor);
  if (process == nullptr) {
    const bool waited = forget_waiting(actor);
    return to_head(cluster::ActorDown{id_, actor, waited ? reason : "no such actor here"});
  }
  if (process->isolated) {
    kill_process(*process, reason);
  } else {
    send(*process, wire::StopActor{actor, reason});
  }
}

}  // namespace troupe
