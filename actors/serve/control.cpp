#include "actors/serve/control.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/config/serving_file.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/link/socket/named_socket.hpp"
#include "runtime/link/socket/serving_sockets.hpp"
#include "runtime/node/job_programs.hpp"

namespace troupe::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostBytes = std::size_t{64} << 10;  ///< of a question
constexpr int kMostTalks = 16;
constexpr int kQuestionMs = 5000;
constexpr int kAgainMs = 100;

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw_error({ErrorCode::kBadInput, "the question is not understood", std::move(why), std::move(todo)});
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string failed_at_it(const std::exception& error) {
  return dump({{"error", {{"what", "the program failed at it"}, {"why", error.what()}, {"todo", ""}}}});
}

Json as_json(const DeploymentStatus& status) {
  const auto& view = status.view;
  const bool ready = view.ready > 0;
  return {{"name", status.name},
          {"url", status.url},
          {"port", status.port},
          {"state", view.drains                                 ? "stopping"
                    : view.rolls_out != 0                       ? "updating"
                    : ready                                     ? "ready"
                    : view.starts_on_demand && view.wanted == 0 ? "idle"
                                                                : "starting"},
          {"weights", view.version},
          {"weights_from", status.weights_from},
          {"fleet", status.fleet.empty() ? Json() : Json(status.fleet)},
          {"node", status.node.empty() ? Json() : Json(status.node)},
          {"rolls_out", view.rolls_out == 0 ? Json() : Json(view.rolls_out)},
          {"rolls_out_from", status.update_from.empty() ? Json() : Json(status.update_from)},
          {"replicas",
           {{"min", view.range.min},
            {"max", view.range.max},
            {"wanted", view.wanted},
            {"starting", view.starting + view.warming},
            {"ready", view.ready},
            {"ending", view.draining},
            {"pids", status.pids}}},
          {"queued_rows", view.queued_rows},
          {"ongoing_requests", view.requests},
          {"last_failure", status.last_failure.empty() ? Json() : Json(status.last_failure)},
          {"cold_starts", view.cold_starts},
          {"last_cold_start_s", view.cold_starts == 0 ? Json() : Json(to_seconds(view.cold_start))}};
}

std::string text_in(const Json& question, const char* key) {
  const auto at = question.find(key);
  if (at == question.end() || !at->is_string()) refuse(std::string("it has no text '") + key + "'", "");
  return at->get<std::string>();
}
int number_in(const Json& question, const char* key) {
  const auto at = question.find(key);
  if (at == question.end() || !at->is_number_unsigned() || at->get<std::uint64_t>() > 1'000'000)
    refuse(std::string("it has no number '") + key + "'", "");
  return at->get<int>();
}

Json ask(Controlled& deployment, const std::string& what, const Json& question) {
  if (what == "scale") {
    deployment.scale({number_in(question, "min"), number_in(question, "max")});
    return {{"deployment", as_json(deployment.status())}};
  }
  if (what == "update") return {{"version", deployment.update_from(text_in(question, "weights"))}};
  if (what == "rollback") return {{"version", deployment.roll_back()}};
  if (what != "stop") refuse("it asks to '" + what + "'", "use troupe serve of the same version");
  deployment.stop_serving();
  return {{"stopped", true}};
}

}  // namespace

std::shared_ptr<Control> Control::of_this_program() {
  static std::mutex mutex;
  static std::weak_ptr<Control> ours;
  const std::lock_guard lock(mutex);
  if (auto there = ours.lock()) return there;
  auto listening = listen_by_name(serving_socket_name(::geteuid(), ::getpid()));
  if (!listening) {
    log(LogLevel::kWarning, "troupe serve cannot ask this program: " + listening.error().message());
    return nullptr;
  }
  auto made = std::make_shared<Control>(*std::move(listening));
  ours = made;
  return made;
}

Control::Control(UniqueFd listening) : listening_(std::move(listening)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  if (const char* const applied = std::getenv(config::kServingVariable)) config_ = applied;
  thread_ = start_quiet_thread([this] { listen(); });
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return talks_ == 0; });
}

void Control::add(Controlled& deployment) {
  const std::lock_guard lock(mutex_);
  asked_.emplace(&deployment, 0);
}

void Control::remove(Controlled& deployment) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return asked_[&deployment] == 0; });
  asked_.erase(&deployment);
}

void Control::listen() {
  for (;;) {
    pollfd waits[] = {{listening_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[1].revents != 0) return;
    if (waits[0].revents == 0) continue;
    {
      // Who asks meanwhile waits in the kernel's queue: one whose connection was closed takes this program
      // for one that has ended, and whoever replaces it would not get its sockets.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return talks_ < kMostTalks || ends_; });
      if (ends_) return;
    }
    auto link = accept_by_name(listening_);
    if (!link) {  // out of descriptors, perhaps: who asks stays in the queue
      ::poll(&waits[1], 1, kAgainMs);
      continue;
    }
    if (!link->peer_is_us()) continue;
    const int asker = link->peer_pid();
    auto connection = std::make_shared<UniqueFd>(std::move(link->socket()));
    const std::lock_guard lock(mutex_);
    try {
      start_quiet_thread([this, connection, asker] { talk(std::move(*connection), asker); }).detach();
      ++talks_;  // it cannot have ended: that takes the lock
    } catch (const std::exception& error) {
      std::string question(kMostBytes, '\0');  // one that is left unread would cut the answer off
      (void)::recv(connection->get(), question.data(), question.size(), MSG_DONTWAIT);
      answer_serving(connection->get(), failed_at_it(error));
    }
  }
}

void Control::talk(UniqueFd connection, int asker) {
  std::string question(kMostBytes + 1, '\0');
  pollfd wait{connection.get(), POLLIN, 0};
  const ssize_t got = ::poll(&wait, 1, kQuestionMs) == 1
                          ? ::recv(connection.get(), question.data(), question.size(), MSG_DONTWAIT)
                          : -1;
  if (got > 0 && static_cast<std::size_t>(got) <= kMostBytes) {
    question.resize(static_cast<std::size_t>(got));
    std::vector<UniqueFd> fds;
    const std::string said = answer(question, &fds, asker);
    answer_serving(connection.get(), said, fds);
  }
  connection.reset();
  const std::lock_guard lock(mutex_);
  --talks_;
  changed_.notify_all();  // under the lock: the last of them is waited for by who ends all this
}

/// Two that take this program's place at once would share its sockets, and the kernel would deal the requests
/// out among both.
void Control::give_place(int port, int asker) {
  if (asker == 0) return;
  const std::lock_guard lock(mutex_);
  Successor& one = successors_[port];
  pollfd ends{one.process.get(), POLLIN, 0};
  if (one.pid != asker && one.process && ::poll(&ends, 1, 0) == 0)
    throw_error({ErrorCode::kRefused, "its place is given once",
                 "process " + std::to_string(one.pid) + " takes it already",
                 "start this program again once that one serves, whose place it then takes, or has ended"});
  one = {asker, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, asker, 0)))};
}

/// Of a port where nothing is served.
void Control::refuse_given_place(int port, int asker) {
  const std::lock_guard lock(mutex_);
  const auto given = successors_.find(port);
  if (given == successors_.end() || given->second.pid == asker) return;
  throw_error({ErrorCode::kRefused, "its place is given once",
               "process " + std::to_string(given->second.pid) + " has taken it",
               "start this program again: it then takes that one's place"});
}

/// That process does not listen, though it lives and may try it again.
void Control::take_place_back(int port, int asker) {
  const std::lock_guard lock(mutex_);
  const auto given = successors_.find(port);
  if (given != successors_.end() && given->second.pid == asker) successors_.erase(given);
}

/// Those that are asked stay until they have answered.
class Control::Asking {
 public:
  explicit Asking(Control& control) : control_(control) {
    const std::lock_guard lock(control_.mutex_);
    for (auto& [one, count] : control_.asked_) {
      ++count;
      all_.push_back(one);
    }
  }
  ~Asking() { keep(nullptr); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  const std::vector<Controlled*>& all() const { return all_; }
  /// The others may go.
  void keep(const Controlled* kept) {
    const std::lock_guard lock(control_.mutex_);
    std::erase_if(all_, [&](Controlled* one) {
      if (one != kept) --control_.asked_.at(one);
      return one != kept;
    });
    control_.changed_.notify_all();
  }

 private:
  Control& control_;
  std::vector<Controlled*> all_;
};

std::string Control::answer(std::string_view text, std::vector<UniqueFd>* fds, int asker) try {
  const Json question = Json::parse(text, nullptr, false);
  if (!question.is_object()) refuse("it is no object", "");
  const std::string what = text_in(question, "do");
  Asking asking(*this);
  if (what == "status") {
    Json all = Json::array(), refused = Json::object();
    for (Controlled* one : asking.all()) {
      const DeploymentStatus status = one->status();
      if (!status.stopped) all.push_back(as_json(status));
      if (!status.refused.empty()) refused[status.name] = status.refused;
    }
    const char* const job = std::getenv(node::kJobIdVariable);
    const std::lock_guard lock(mutex_);
    return dump({{"pid", ::getpid()},
                 {"deployments", std::move(all)},
                 {"refused", std::move(refused)},
                 {"job", job == nullptr ? Json() : Json(job)},
                 {"config", config_}});
  }
  if (what == "applied") {
    const std::string config = text_in(question, "config");
    const std::lock_guard lock(mutex_);
    config_ = config;
    return dump({{"applied", true}});
  }
  if (what == "metrics") {
    std::map<int, std::string> pages;  // by port
    for (Controlled* one : asking.all()) {
      const DeploymentStatus status = one->status();
      if (!status.stopped && !pages.contains(status.port)) pages[status.port] = one->metrics();
    }
    Json all = Json::array();
    for (auto& [port, page] : pages) all.push_back({{"port", port}, {"text", std::move(page)}});
    return dump({{"pages", std::move(all)}});
  }
  if (what == "not_taken") {
    take_place_back(number_in(question, "port"), asker);
    return dump({{"stays", true}});
  }
  if (what == "hand_over" || what == "taken") {
    const int at = number_in(question, "port");
    std::vector<Controlled*> there;
    for (Controlled* one : asking.all()) {
      const DeploymentStatus status = one->status();
      if (!status.stopped && status.port == at) there.push_back(one);
    }
    if (there.empty() && what == "hand_over") refuse_given_place(at, asker);
    if (there.empty()) refuse("nothing is served at port " + std::to_string(at), "see troupe serve list");
    if (what == "hand_over") {
      auto sockets = there.front()->listening();
      if (sockets.size() > kMostServingFds)
        refuse("it listens on " + std::to_string(sockets.size()) + " sockets, more than a message carries",
               "start the new program when this one has ended");
      give_place(at, asker);
      const std::size_t count = sockets.size();
      if (fds != nullptr) *fds = std::move(sockets);
      return dump({{"sockets", count}});
    }
    for (Controlled* one : there) one->leave();
    return dump({{"leaves", true}});
  }
  const std::string name = text_in(question, "name");
  const int port = question.contains("port") ? number_in(question, "port") : 0;
  std::vector<Controlled*> named;
  for (Controlled* one : asking.all()) {
    const DeploymentStatus status = one->status();
    if (!status.stopped && status.name == name && (port == 0 || status.port == port)) named.push_back(one);
  }
  if (named.size() != 1)
    throw_error({ErrorCode::kRefused, "cannot " + what + " '" + name + "'",
                 named.empty() ? "no deployment of this program has that name"
                               : "several deployments of this program have that name",
                 "see troupe serve list, and give --port"});
  asking.keep(named.front());
  return dump(ask(*named.front(), what, question));
} catch (const Error& error) {
  const ErrorInfo& info = error.info();
  return dump({{"error", {{"what", info.what}, {"why", info.why}, {"todo", info.todo}}}});
} catch (const std::exception& error) {
  return failed_at_it(error);
}

}  // namespace troupe::serve
