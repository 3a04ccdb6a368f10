// The head's part that answers those who submit jobs: clients, each with a key for one conversation. What it
// decides on jobs is ClusterMachine's; here are answers, and output on its way from the node that has it.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/node/log_segments.hpp"
#include "runtime/node/process_list.hpp"
#include "runtime/node/worker_outputs.hpp"
#include "scheduler/head/head.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMostClients = 1024;
constexpr Duration kClientComes = std::chrono::seconds(60);
constexpr std::size_t kMostLogAsks = 4096;
constexpr Duration kNodeReads = std::chrono::seconds(5);
/// Of a page of submissions.
constexpr std::size_t kMostPageBytes = std::size_t{4} << 20;
constexpr std::size_t kMostPage = 200;

/// A program that came in by itself has a job name and no record of a submission.
ErrorInfo no_such_job(const cluster::ClusterMachine& cluster, const std::string& id) {
  ErrorInfo error{ErrorCode::kRefused, "there is no job " + cluster::clipped(id.substr(0, 80)),
                  "none of that id was submitted to this cluster, or its record was dropped since",
                  "troupe job list shows those that there are"};
  const cluster::Job* job = cluster.jobs().named(id);
  if (job == nullptr) return error;
  error.why = "a program of that job name came in by itself, and " +
              std::string(job->record.parked ? "is gone: its detached actors stay"
                          : job->runs()      ? "runs"
                                             : "has ended");
  error.todo = "troupe status --all shows it";
  for (const std::string& end : cluster.detached_ends(id)) error.why += "; detached actor " + end;
  return error;
}

/// Whose job it is, in its environment: the head says so, whatever its submitter does. None: the head's
/// owner's.
constexpr std::string_view kSubmitter = "TROUPE_SUBMITTED_BY=";

PeerName submitter_of(const cluster::SubmissionSpec& spec) {
  for (const std::string& entry : spec.environment) {
    if (entry.starts_with(kSubmitter)) return entry.substr(kSubmitter.size());
  }
  return kOwnerName;
}

cluster::SubmissionRecord without_environment(cluster::SubmissionRecord record) {
  record.spec.environment.clear();  // it may hold secrets
  return record;
}

wire::Bytes frame_of(std::uint64_t request, Result<wire::Bytes> value) {
  wire::Answer answer{.request = request, .ok = value.ok()};
  if (value) {
    answer.value = *std::move(value);
  } else {
    answer.error = value.error();
  }
  return wire::control_frame(std::move(answer));
}

}  // namespace

std::int64_t Head::wall_clock_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// For an answer that is held until what it says is durable.
Result<wire::Bytes> Head::answer_about(const std::string& id) const {
  const cluster::SubmissionRecord* found = machine_.cluster().submissions().find(id);
  if (found == nullptr) return no_such_job(machine_.cluster(), id);
  return wire::encode(wire::SubmissionAnswer{without_environment(*found), machine_.cluster().why(*found)});
}

/// As it is durable now.
Result<wire::Bytes> Head::show_job(const std::string& id) const {
  const auto shown = machine_.shown(id);
  if (!shown) return no_such_job(machine_.cluster(), id);
  const bool is_now = shown->state == machine_.cluster().submissions().find(id)->state;
  return wire::encode(wire::SubmissionAnswer{without_environment(*shown),
                                             is_now ? machine_.cluster().why(*shown) : shown->message});
}

Result<wire::Bytes> Head::explain_job(const std::string& id) const {
  const auto shown = machine_.shown(id);
  if (!shown) return no_such_job(machine_.cluster(), id);
  const cluster::SubmissionRecord& now = *machine_.cluster().submissions().find(id);
  cluster::WaitReport report;  // of a state that is not durable yet nothing is said
  report.sentence = shown->message;
  if (shown->state == now.state) report = machine_.cluster().explain(now);
  return wire::encode(wire::WhyAnswer{without_environment(*shown), std::move(report)});
}

/// The head's owner asks about every job, a machine that joined about those that it submitted.
std::optional<ErrorInfo> Head::not_its_job(const PeerName& client, const char* what,
                                           const std::string& id) const {
  const PeerName& by = clients_.at(client).brought_by;
  const cluster::SubmissionRecord* job = machine_.cluster().submissions().find(id);
  if (by == kOwnerName || job == nullptr || submitter_of(job->spec) == by) return std::nullopt;
  return ErrorInfo{ErrorCode::kRefused, std::string("cannot ") + what + " job " + id,
                   by + " did not submit it", "run it on the head's machine"};
}

/// Jobs of a machine that was shut out end with it; those of which a head that died meanwhile has not written
/// it down, when the next one starts.
void Head::stop_jobs_of_strangers() {
  std::vector<std::pair<std::string, PeerName>> stops;
  for (const auto& [id, job] : machine_.cluster().submissions().all()) {
    const PeerName by = submitter_of(job.spec);
    if (by != kOwnerName && !admission_->knows(by) && !cluster::has_ended(job.state))
      stops.emplace_back(id, by);
  }
  for (const auto& [id, by] : stops) {
    log(LogLevel::kInfo, "job " + id + " is stopped: " + key_was_removed(by));
    on(cluster::SubmissionStopRequested{id});
  }
}

bool Head::on_job_ask(const PeerName& from, const wire::Control& message) {
  const bool is_client = from.starts_with(kClientPrefix);
  const auto answer = [&](std::uint64_t request, Result<wire::Bytes> value) {
    if (!value) refusals_(from + ": " + value.error().message(), clock_.now());
    server_->send(from, frame_of(request, std::move(value)));
  };
  if (const auto* a = std::get_if<wire::ClientAsk>(&message)) {
    answer(a->request, let_client_in(from, *a));
    return true;
  }
  if (const auto* log = std::get_if<wire::LogRead>(&message)) {
    log_was_read(from, *log);
    return true;
  }
  if (const auto* ask = std::get_if<wire::PackageAsk>(&message)) return give_package(from, *ask);
  if (!is_client) return false;
  if (!clients_.contains(from)) return true;  // it was shut out meanwhile
  const auto answer_on = [&](std::uint64_t request, const char* what, const std::string& id, auto&& handle) {
    if (auto refused = not_its_job(from, what, id)) return answer(request, *std::move(refused));
    answer(request, handle());
  };
  if (const auto* submit = std::get_if<wire::SubmitAsk>(&message)) {
    submit_job(from, *submit);
  } else if (const auto* stop = std::get_if<wire::StopSubmissionAsk>(&message)) {
    stop_job(from, *stop);
  } else if (const auto* one = std::get_if<wire::SubmissionAsk>(&message)) {
    answer_on(one->request, "show", one->id, [&] { return show_job(one->id); });
  } else if (const auto* reason = std::get_if<wire::WhyAsk>(&message)) {
    answer_on(reason->request, "explain", reason->id, [&] { return explain_job(reason->id); });
  } else if (const auto* page = std::get_if<wire::SubmissionsAsk>(&message)) {
    answer(page->request, page_of_jobs(clients_.at(from).brought_by, page->below));
  } else if (const auto* queues = std::get_if<wire::QueuesAsk>(&message)) {
    answer_about_queues(from, *queues);
  } else if (const auto* log = std::get_if<wire::LogAsk>(&message)) {
    ask_for_log(from, *log);
  } else if (const auto* put = std::get_if<wire::PackagePut>(&message)) {
    put_package(from, *put);
  } else {
    return false;
  }
  return true;
}

void Head::stop_job(const PeerName& from, const wire::StopSubmissionAsk& ask) {
  auto refused = not_its_job(from, "stop", ask.id);
  const auto parked = machine_.cluster().parked_jobs_of(ask.id);
  const PeerName& by = clients_.at(from).brought_by;
  const bool is_others = by != kOwnerName && std::any_of(parked.begin(), parked.end(),
                                                         [&](JobId job) { return !is_its_program(by, job); });
  if (!refused && is_others)
    refused =
        ErrorInfo{ErrorCode::kRefused, "cannot stop job " + cluster::clipped(ask.id.substr(0, 80)),
                  "it is parked, and no program of " + by + " started it", "run it on the head's machine"};
  Result<wire::Bytes> value = wire::Bytes{};
  if (refused) {
    value = *std::move(refused);
  } else {
    on(cluster::SubmissionStopRequested{ask.id});
    value = answer_about(ask.id);
    if (!value && !parked.empty()) {  // of a program that nobody submitted
      cluster::SubmissionRecord stopped;
      stopped.spec.id = ask.id;
      stopped.state = cluster::SubmissionState::kStopped;
      value = wire::encode(wire::SubmissionAnswer{std::move(stopped), "its detached actors are ended"});
    }
  }
  if (value)
    return carry_out(
        machine_.reply({from, frame_of(ask.request, std::move(value)), ask.request}, clock_.now()));
  refusals_(from + ": " + value.error().message(), clock_.now());
  server_->send(from, frame_of(ask.request, std::move(value)));
}

/// To change one is the head's owner's alone. What is acknowledged is recorded.
void Head::answer_about_queues(const PeerName& from, const wire::QueuesAsk& ask) {
  const auto refuse = [&](const ErrorInfo& why) { server_->send(from, frame_of(ask.request, why)); };
  const bool changes = ask.set || ask.remove;
  if (changes) {
    const std::string what = std::string("cannot ") + (ask.set ? "set" : "remove") + " queue " +
                             cluster::clipped(ask.queue.name.substr(0, 80));
    const auto client = clients_.find(from);
    if (client == clients_.end() || client->second.brought_by != kOwnerName)
      return refuse({ErrorCode::kRefused, what, "only the head's owner may", "run it on the head's machine"});
    const cluster::QueueChanged change{ask.queue, ask.remove};
    if (const auto refused = machine_.cluster().queue_refused(change)) return refuse(*refused);
    if (const auto& trouble = machine_.trouble()) return refuse(refused_for(what, *trouble));
    on(change);
  }
  auto frame = frame_of(ask.request, wire::encode(wire::QueuesAnswer{machine_.cluster().queue_statuses()}));
  if (!changes) return static_cast<void>(server_->send(from, std::move(frame)));
  carry_out(machine_.reply({from, std::move(frame), ask.request}, clock_.now()));
}

/// What is acknowledged is recorded: the answer is held until it is.
void Head::submit_job(const PeerName& from, const wire::SubmitAsk& ask) {
  const auto refuse = [&](const ErrorInfo& why) { server_->send(from, frame_of(ask.request, why)); };
  if (const auto refused = not_its_job(from, "submit", ask.spec.id)) return refuse(*refused);
  cluster::SubmissionSpec spec = ask.spec;
  std::erase_if(spec.environment, [](const std::string& entry) { return entry.starts_with(kSubmitter); });
  if (const PeerName& by = clients_.at(from).brought_by; by != kOwnerName)
    spec.environment.push_back(std::string(kSubmitter) + by);
  if (const auto refused = machine_.cluster().submission_refused(spec)) return refuse(*refused);
  const bool is_known = machine_.cluster().submissions().find(spec.id) != nullptr;
  if (const auto& trouble = machine_.trouble(); trouble && !is_known)
    return refuse(refused_for("cannot submit the job", *trouble));
  if (const std::string& package = spec.package; !package.empty() && !is_known) {
    if (const auto missing = packages_.is_missing(package)) return refuse(*missing);
  }
  on(cluster::SubmissionRequested{spec});
  carry_out(machine_.reply(
      {from, frame_of(ask.request, answer_about(spec.id)), ask.request, is_known ? "" : spec.id},
      clock_.now()));
}

Result<wire::Bytes> Head::page_of_jobs(const PeerName& by, std::uint64_t below) const {
  const auto& all = machine_.cluster().submissions();
  wire::SubmissionsAnswer page;
  std::size_t bytes = 0;
  const auto& order = all.by_number();
  for (auto at = below == 0 ? order.end() : order.lower_bound(below); at != order.begin();) {
    --at;
    const auto shown = machine_.shown(at->second);
    if (!shown) continue;  // it is not recorded yet
    if (by != kOwnerName && submitter_of(shown->spec) != by) continue;
    auto record = without_environment(*shown);
    for (const std::string& word : record.spec.program) bytes += word.size() + 8;
    if (page.records.size() >= kMostPage || bytes > kMostPageBytes) {
      page.more = true;
      break;
    }
    page.records.push_back(std::move(record));
  }
  return wire::encode(page);
}

// Clients.

Result<wire::Bytes> Head::let_client_in(const PeerName& from, const wire::ClientAsk& ask) {
  if (from != kOwnerName && !from.starts_with(kMachinePrefix)) {
    return ErrorInfo{ErrorCode::kRefused, "the head refuses a client", from + " may not ask for it",
                     "join with a token first: troupe start --token-file FILE"};
  }
  const auto key = parse_public_key(ask.public_key);
  if (!key) return key.error();
  if (clients_.size() >= kMostClients) {
    return ErrorInfo{ErrorCode::kLimit, "the head refuses a client",
                     std::to_string(kMostClients) + " are connected",
                     "end some: troupe job logs --follow, or wait"};
  }
  const PeerName name = std::string(kClientPrefix) + ask.public_key;
  if (const auto holder = options_.authorizer->find(*key); holder && *holder != name) {
    return ErrorInfo{ErrorCode::kRefused, "the head refuses a client", "its key is that of " + *holder,
                     "generate a key pair"};
  }
  options_.authorizer->allow(*key, name);
  clients_[name] = {*key, from, clock_.now() + kClientComes};
  return wire::Bytes{};
}

void Head::client_came(const PeerName& name) {
  if (const auto at = clients_.find(name); at != clients_.end()) at->second.comes_until = Instant::max();
}

void Head::client_went(const PeerName& name) {
  const auto at = clients_.find(name);
  if (at == clients_.end()) return;
  options_.authorizer->revoke(at->second.key);
  clients_.erase(at);
  packages_.client_went(name);
}

// Packages.

void Head::put_package(const PeerName& from, const wire::PackagePut& put) {
  packages_.put(from, put.part, [this, from, request = put.request](const Result<wire::PackageHeld>& held) {
    server_->send(from, frame_of(request, held ? Result<wire::Bytes>(wire::encode(*held))
                                               : Result<wire::Bytes>(held.error())));
    if (!clients_.contains(from)) packages_.client_went(from);  // while it was written
  });
}

/// No answer finds no room: the node asks again.
bool Head::give_package(const PeerName& from, const wire::PackageAsk& ask) {
  const NodeId node{std::strtoull(from.c_str(), nullptr, 16)};
  if (from != to_hex(node.value) || !machine_.cluster().nodes().contains(node)) return false;
  packages_.read(ask, [this, from](wire::PackagePart part) {
    server_->send(from, wire::control_frame(std::move(part)));
  });
  return true;
}

// Output.

void Head::ask_for_log(const PeerName& from, const wire::LogAsk& ask) {
  for (const std::string_view of_node : {node::kNodeLog, node::kProcesses, node::kDump}) {
    if (ask.id.starts_with(of_node)) return ask_node(from, ask, of_node);
  }
  if (ask.id.starts_with(node::kActorLog)) return ask_for_log_of_actor(from, ask);
  const auto answer = [&](Result<wire::Bytes> value) {
    server_->send(from, frame_of(ask.request, std::move(value)));
  };
  const cluster::SubmissionRecord* job = machine_.cluster().submissions().find(ask.id);
  if (job == nullptr) return answer(no_such_job(machine_.cluster(), ask.id));
  if (auto refused = not_its_job(from, "read the output of", ask.id)) return answer(*std::move(refused));
  PendingLog log{from, ask.request, {}, {}, machine_.cluster().outputs_of(*job), ask};
  if (log.ask.attempt == 0) log.ask.attempt = job->attempt;
  if (log.ask.attempt == 0)  // it has not started
    return answer(wire::encode(wire::LogPart{.closed = cluster::has_ended(job->state)}));
  if (log.others.empty()) {
    return answer(ErrorInfo{ErrorCode::kUnavailable, "cannot read the output of job " + job->spec.id,
                            "it is on node " + job->node_name + ", which is not there now",
                            "try again, once that node is back"});
  }
  if (const auto failed = read_log_at(std::move(log))) answer(*failed);
}

/// Who may ask for a node's status may ask what its processes are. What it logs tells of every job there, and
/// a dump of what is in memory: they are for the head's owner, and for the node's own machine.
void Head::ask_node(const PeerName& from, const wire::LogAsk& ask, std::string_view prefix) {
  const std::string rest = ask.id.substr(prefix.size()), name = rest.substr(0, rest.find('/'));
  const std::string what = (prefix == node::kNodeLog     ? "cannot read the log of node "
                            : prefix == node::kProcesses ? "cannot see the processes of node "
                                                         : "cannot dump the processes of node ") +
                           cluster::clipped(name.substr(0, 80));
  const auto refuse = [&](const ErrorInfo& why) { server_->send(from, frame_of(ask.request, why)); };
  const auto id = node_named(name);
  if (!id) return refuse(id.error());
  if (!*id)
    return refuse({ErrorCode::kRefused, what, "no live node has that name or id",
                   "troupe node list shows those that live; what a dead one has logged is in node.log, or "
                   "head.log, of its folder"});
  const PeerName& by = clients_.at(from).brought_by;
  if (prefix != node::kProcesses && by != kOwnerName && !brought(by, **id))
    return refuse({ErrorCode::kRefused, what, by + " may not ask for it",
                   "run it on the node's own machine, or on the head's"});
  if (machine_.cluster().nodes().at(**id).info.gateway)
    return refuse(
        {ErrorCode::kRefused, what, "it is a program's own way in", "look at what the program prints"});
  if (const auto failed = read_log_at({from, ask.request, {}, {}, {**id}, ask})) refuse(*failed);
}

/// Whether that machine brought that node: started it, or a program that has it as its way in.
bool Head::brought(const PeerName& machine, NodeId node) const {
  const auto* entry = admission_->find(to_hex(node.value));
  return entry != nullptr && entry->brought_by == machine;
}

/// Whether the submission that it names has been started where it registers: a node could name any.
bool Head::runs_there(const cluster::JobRegistered& program) const {
  const auto* submission = machine_.cluster().submissions().find(program.submission);
  return submission != nullptr && submission->node == program.driver.node;
}

/// Whose program registers a job: its submitter's, else that of the machine which brought its node. Empty:
/// the head's owner's.
std::string Head::starter_of(const cluster::JobRegistered& program) const {
  const auto* submission = machine_.cluster().submissions().find(program.submission);
  const auto* node = admission_->find(to_hex(program.driver.node.value));
  const PeerName by = submission != nullptr ? submitter_of(submission->spec)
                      : node != nullptr     ? node->brought_by
                                            : kOwnerName;
  return by == kOwnerName ? "" : by;
}

bool Head::is_its_program(const PeerName& machine, JobId id) const {
  const cluster::Job* job = machine_.cluster().jobs().find(id);
  return job != nullptr && job->record.started_by == machine;
}

/// A machine that joined reads what its own nodes have, and actors of its own programs wherever they are.
/// Where it lives is asked first; an earlier life, or one that has ended, may have been on any other node.
void Head::ask_for_log_of_actor(const PeerName& from, const wire::LogAsk& ask) {
  const std::string name = ask.id.substr(node::kActorLog.size());
  const std::string what = "cannot read the output of actor " + cluster::clipped(name.substr(0, 80));
  const auto refuse = [&](const ErrorInfo& why) { server_->send(from, frame_of(ask.request, why)); };
  const PeerName& by = clients_.at(from).brought_by;
  const auto& actors = machine_.cluster().actors();
  const auto found = std::find_if(actors.begin(), actors.end(), [&](const auto& entry) {
    return to_string(entry.first) == name || (!name.empty() && entry.second.record.spec.name == name);
  });
  const bool is_known = found != actors.end();
  const bool reads_all = by == kOwnerName || (is_known && is_its_program(by, found->second.record.spec.job));
  PendingLog log{from, ask.request, {}, {}, {}, ask};
  for (const auto& [id, node] : machine_.cluster().nodes()) {
    if (!node.info.gateway && (reads_all || brought(by, id))) log.others.push_back(id);
  }
  if (!reads_all && (log.others.empty() || (is_known && !brought(by, found->second.record.node))))
    return refuse({ErrorCode::kRefused, what, by + " may not ask for it",
                   "run it on the actor's own machine, or on the head's"});
  if (log.others.empty()) return refuse({ErrorCode::kUnavailable, what, "no node is there now", "try again"});
  if (is_known) {
    std::stable_partition(log.others.begin(), log.others.end(),
                          [&](NodeId node) { return node == found->second.record.node; });
  }
  if (const auto failed = read_log_at(std::move(log))) refuse(*failed);
}

std::string Head::name_of_node(NodeId node) const {
  const auto& nodes = machine_.cluster().nodes();
  const auto at = nodes.find(node);
  return at == nodes.end() ? to_string(node) : at->second.info.name;
}

/// Asks the next of the others.
std::optional<ErrorInfo> Head::read_log_at(PendingLog log) {
  const auto unavailable = [](std::string why) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot read the output", std::move(why), "try again"};
  };
  if (log_asks_.size() >= kMostLogAsks) return unavailable("too many read output at once");
  wire::ReadLog read;
  do {
    if (log.others.empty()) return unavailable("node " + name_of_node(log.node) + " is not connected now");
    log.node = log.others.front();
    log.others.erase(log.others.begin());
    read = {++last_log_ask_, log.ask};
  } while (server_->send(to_hex(log.node.value), wire::control_frame(read)) != Sent::kQueued);
  log.until = clock_.now() + kNodeReads;
  log_asks_.emplace(read.number, std::move(log));
  return std::nullopt;
}

void Head::log_was_read(const PeerName& from, const wire::LogRead& read) {
  const auto at = log_asks_.find(read.number);
  if (at == log_asks_.end() || to_hex(at->second.node.value) != from) return;  // nobody waits any more
  PendingLog log = std::move(at->second);
  log_asks_.erase(at);
  const PeerName to = log.from;
  const std::uint64_t request = log.request;
  auto value = read.ok ? Result<wire::Bytes>(wire::encode(read.part)) : Result<wire::Bytes>(read.error);
  if (!read.ok) {
    ErrorInfo error = read.error;
    error.why = "node " + name_of_node(log.node) + ": " + error.why;
    value = error;
  }
  if (!read.ok && !log.others.empty()) {  // an earlier attempt may have run on another node
    const auto failed = read_log_at(std::move(log));
    if (!failed) return;
    value = *failed;
  }
  server_->send(to, frame_of(request, std::move(value)));
}

void Head::tick_clients() {
  const Instant now = clock_.now();
  std::vector<PeerName> gone;
  for (const auto& [name, client] : clients_) {
    if (client.comes_until < now) gone.push_back(name);
  }
  for (const PeerName& name : gone) client_went(name);
  packages_.tick(
      [this](const std::string& id) { return machine_.cluster().submissions().names_package(id); });
  for (auto at = log_asks_.begin(); at != log_asks_.end();) {
    if (now < at->second.until) {
      ++at;
      continue;
    }
    PendingLog log = std::move(at->second);
    at = log_asks_.erase(at);
    const PeerName to = log.from;
    const std::uint64_t request = log.request;
    ErrorInfo error{ErrorCode::kUnavailable, "cannot read the output",
                    "node " + name_of_node(log.node) + " did not answer", "try again"};
    if (!log.others.empty()) {  // another one may have it
      const auto failed = read_log_at(std::move(log));
      if (!failed) continue;
      error = *failed;
    }
    server_->send(to, frame_of(request, std::move(error)));
  }
}

}  // namespace troupe
