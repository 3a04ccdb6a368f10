// What a process asks of its node, and waits for.
#include "runtime/host/process.hpp"

namespace troupe {
namespace {

constexpr Duration kNodeAnswers = std::chrono::seconds(30);

}  // namespace

std::shared_ptr<CallState> Process::find(std::string name) {
  return node_
      ->ask(
          [&](std::uint64_t request) {
            return wire::FindAsk{request, std::move(name)};
          },
          rings_.get())
      .state;
}

std::shared_ptr<CallState> Process::nodes() {
  return node_->ask([](std::uint64_t request) { return wire::NodesAsk{request}; }, rings_.get()).state;
}

std::shared_ptr<CallState> Process::group(cluster::GroupVerb verb, GroupId group, cluster::GroupSpec spec) {
  const auto asked = node_->ask(
      [&](std::uint64_t request) {
        return wire::GroupAsk{request, verb, group, std::move(spec)};
      },
      rings_.get());
  asked.state->set_on_cancel([this, request = asked.number](Duration) { node_->cancel(request); });
  return asked.state;
}

NodeLink::Request Process::ask_for_region(const std::string& key, std::size_t bytes, const std::string& label,
                                          bool abortable) {
  return node_->ask(
      [&](std::uint64_t request) {
        return wire::RegionAsk{request, key, bytes, label, abortable};
      },
      rings_.get());
}

Result<SharedMemory> Process::open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                          bool abortable) {
  const auto asked = ask_for_region(key, bytes, label, abortable);
  if (!asked.state->wait(kNodeAnswers)) {
    return ErrorInfo{ErrorCode::kTimeout, "no shared memory '" + key + "'",
                     "the node did not answer within 30 s", ""};
  }
  if (!asked.state->outcome().ok()) return asked.state->outcome().error();
  const auto answer = wire::decode<wire::RegionAnswer>(*asked.state->outcome());
  if (!answer) return answer.error();
  if (answer->full) {
    const auto again = [this, key, bytes, label, abortable](objects::Objects::OnRegion then) {
      lend_region(key, bytes, label, abortable, std::move(then));
    };
    auto lent = objects_->lend(again, bytes);
    if (!lent) return lent.error();
    if (lent->answer.full) return lent->answer.why;
    return SharedMemory::map(std::move(lent->fd));
  }
  auto fds = node_->take_fds(asked.number);
  if (fds.empty()) {
    return ErrorInfo{ErrorCode::kIo, "no shared memory '" + key + "'", "its descriptor was lost",
                     "raise ulimit -n"};
  }
  return SharedMemory::map(std::move(fds.front()));
}

void Process::lend_region(const std::string& key, std::uint64_t bytes, const std::string& label,
                          bool abortable, objects::Objects::OnRegion then) {
  const auto asked = ask_for_region(key, bytes, label, abortable);
  asked.state->on_ready([this, asked, then = std::move(then)] {
    if (!asked.state->outcome().ok()) return then(asked.state->outcome().error());
    auto answer = wire::decode<wire::RegionAnswer>(*asked.state->outcome());
    if (!answer) return then(answer.error());
    objects::Objects::Lent lent{{}, *std::move(answer)};
    auto fds = node_->take_fds(asked.number);
    if (!fds.empty()) lent.fd = std::move(fds.front());
    if (!lent.fd && !lent.answer.full)
      return then(
          ErrorInfo{ErrorCode::kIo, "no shared memory", "its descriptor was lost", "raise ulimit -n"});
    then(std::move(lent));
  });
}

void Process::drop_region(const std::string& key) {
  node_->tell(wire::RegionDrop{key});
}

std::shared_ptr<CallState> Process::begin_job(const std::string& name) {
  node_->watch();
  const auto asked = node_->ask(
      [&](std::uint64_t request) {
        return wire::JobAsk{request, name};
      },
      rings_.get());
  auto known = std::make_shared<CallState>(rings_.get());
  asked.state->on_ready([this, known, state = asked.state] {
    if (state->outcome().ok()) {
      const auto answer = wire::decode<wire::JobAnswer>(*state->outcome()).value();
      config_.job = answer.job;
      config_.incarnation = answer.incarnation;
    }
    known->resolve(state->outcome());
  });
  return known;
}

void Process::register_job(const std::string& name, Duration timeout) {
  const auto known = begin_job(name);
  if (!known->wait(timeout)) {
    throw Timeout({ErrorCode::kTimeout, "the job '" + name + "' could not be registered",
                   "the head did not answer within " + std::to_string(to_seconds(timeout)) + " s",
                   "see whether it runs: troupe status"});
  }
  known->outcome().value();  // throws what the head said
}

}  // namespace troupe
