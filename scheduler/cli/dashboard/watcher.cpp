#include "scheduler/cli/dashboard/watcher.hpp"

#include <sys/stat.h>

#include <algorithm>

#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/random.hpp"
#include "runtime/http/metrics.hpp"
#include "scheduler/cli/dashboard/metrics.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/serving_programs.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/cli/sweep_records.hpp"
#include "scheduler/cli/tune.hpp"
#include "scheduler/init/cluster_folder.hpp"

namespace troupe::cli {
namespace {

using http::Answer;
using http::error_response;
using http::Response;
using nlohmann::json;

constexpr Duration kBetweenLooks = std::chrono::seconds(1);
constexpr Duration kStillWatched = std::chrono::seconds(30);  // longer than a page waits for news
constexpr Duration kHoldsAnswer = std::chrono::seconds(20);
constexpr Duration kHeadAnswers = std::chrono::seconds(4);
constexpr Duration kProgramsAnswer = std::chrono::milliseconds(500);  // all of them
constexpr std::size_t kMostPrograms = 200;
constexpr std::size_t kMostWork = 64, kMostWaiters = 256, kMostLogBytes = std::size_t{256} << 10,
                      kMostSweeps = 200;

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

Response json_response(std::string body) {
  Response response;
  response.headers.emplace_back("Cache-Control", "no-store");
  response.body = std::move(body);
  return response;
}

Response failure(const std::exception& thrown) {
  const auto* error = dynamic_cast<const Error*>(&thrown);
  return error_response(error != nullptr && error->code() == ErrorCode::kRefused ? 404 : 502, thrown.what());
}

std::string random_run() {
  SystemRandom random;
  return std::to_string(random.next());
}

/// Length and time of change: another one for every event that was written.
std::string stamp_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return std::to_string(info.st_size) + "/" + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

}  // namespace

Watcher::Watcher(const DashboardOptions& options) : options_(options), run_(random_run()) {
  for (const std::string& path : options_.reports) reports_.push_back({path, TrainingCurve(path)});
  thread_ = start_thread([this] { run(); });
}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (Waiter& waiter : waiters_) waiter.answer(error_response(503, "the dashboard ends"));
}

void Watcher::snapshot(const std::string& version, Answer answer) {
  const std::lock_guard lock(mutex_);
  looked_at_ = clock_.now();
  if (waiters_.size() >= kMostWaiters) return answer(error_response(503, "too many pages are open"));
  waiters_.push_back({version, clock_.now() + kHoldsAnswer, std::move(answer)});
  answer_waiters();
  changed_.notify_all();
}

/// REQUIRES: mutex_ is held.
void Watcher::answer_waiters() {
  const Instant now = clock_.now();
  std::erase_if(waiters_, [&](Waiter& waiter) {
    const bool news = !version_.empty() && waiter.version != version_;
    if (!news && now < waiter.until) return false;
    Response response = json_response(news ? text_ : "");
    response.status = news ? 200 : 204;
    waiter.answer(std::move(response));
    return true;
  });
}

void Watcher::actors(std::string_view query, Answer answer) {
  const auto number = [&](const char* name, std::size_t otherwise, std::size_t most) {
    const auto text = parameter_of(query, name);
    if (!text || text->empty() || text->size() > 9 ||
        text->find_first_not_of("0123456789") != std::string::npos)
      return otherwise;
    return std::min<std::size_t>(std::stoul(*text), most);
  };
  auto shared = std::make_shared<Answer>(std::move(answer));
  later(
      [this, shared, text = parameter_of(query, "text").value_or(""),
       offset = number("offset", 0, 1'000'000'000), limit = number("limit", 50, 500)] {
        const auto view = look_anew();
        (*shared)(view->status.address.empty()  // the head never answered
                      ? error_response(503, view->error)
                      : json_response(text_of(page_of_actors(view->status, text, offset, limit))));
      },
      *shared, false);
}

/// What is no older than a second.
std::shared_ptr<const ClusterView> Watcher::look_anew() {
  if (clock_.now() >= next_look_) look();
  const std::lock_guard lock(mutex_);
  return view_;
}

/// A scrape looks once, and not on and on as for a page that is open.
void Watcher::metrics(Answer answer) {
  auto shared = std::make_shared<Answer>(std::move(answer));
  later(
      [this, shared] {
        Response response;
        response.content_type = std::string(http::kMetricsContentType);
        response.body = metrics_of(*look_anew(), serving_pages());
        (*shared)(std::move(response));
      },
      *shared, false);
}

/// Runs it in the thread that may wait for the head. What it throws is the answer.
void Watcher::later(std::function<void()> work, Answer& answer, bool is_look) {
  const std::lock_guard lock(mutex_);
  if (is_look) looked_at_ = clock_.now();
  if (work_.size() >= kMostWork) return answer(error_response(503, "too many questions wait: try again"));
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void Watcher::logs(std::string id, std::size_t lines, Answer answer) {
  auto shared = std::make_shared<Answer>(std::move(answer));
  later(
      [this, id = std::move(id), lines, shared] {
        try {
          std::string text;
          bool is_cut = false;
          const JobInfo job = jobs().read_output(id, {.tail = static_cast<std::int64_t>(lines)},
                                                 [&](const JobOutput& output) {
                                                   text += output.bytes;
                                                   if (text.size() <= 2 * kMostLogBytes) return;
                                                   text.erase(0, text.size() - kMostLogBytes);
                                                   is_cut = true;
                                                 });
          if (text.size() > kMostLogBytes) text.erase(0, text.size() - kMostLogBytes), is_cut = true;
          (*shared)(json_response(
              text_of({{"status", to_string(job.status)}, {"text", text}, {"is_cut", is_cut}})));
        } catch (const std::exception& error) {
          (*shared)(failure(error));
        }
      },
      *shared);
}

void Watcher::why(std::string id, Answer answer) {
  auto shared = std::make_shared<Answer>(std::move(answer));
  later(
      [this, id = std::move(id), shared] {
        try {
          (*shared)(json_response(text_of(as_json(jobs().why(id)))));
        } catch (const std::exception& error) {
          (*shared)(failure(error));
        }
      },
      *shared);
}

void Watcher::sweep(std::string name, Answer answer) {
  auto shared = std::make_shared<Answer>(std::move(answer));
  later(
      [this, name = std::move(name), shared] {
        const auto known = sweeps_in(options_.sweeps);
        if (std::find(known.begin(), known.end(), name) == known.end())
          return (*shared)(error_response(404, "there is no such sweep"));
        const auto records = read_sweep(options_.sweeps, name);
        if (!records) return (*shared)(error_response(500, records.error().message()));
        Response response = json_response(page_of(*records));
        response.content_type = "text/html; charset=utf-8";
        (*shared)(std::move(response));
      },
      *shared);
}

JobClient& Watcher::jobs() {
  if (jobs_ == nullptr) jobs_ = std::make_unique<JobClient>(options_.where);
  return *jobs_;
}

void Watcher::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const Instant now = clock_.now();
    if (!work_.empty()) {
      const auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      continue;
    }
    const bool is_watched = looked_at_ != Instant{} && now < looked_at_ + kStillWatched;
    if (is_watched && now >= next_look_) {
      lock.unlock();
      look();
      lock.lock();
    }
    answer_waiters();
    if (!work_.empty() || ends_) continue;
    if (is_watched || !waiters_.empty()) {
      changed_.wait_for(lock, std::max(Duration(std::chrono::milliseconds(10)), next_look_ - clock_.now()));
    } else {
      changed_.wait(lock);
    }
  }
}

void Watcher::look() {
  std::shared_ptr<const ClusterView> last;
  {
    const std::lock_guard lock(mutex_);
    last = view_;
  }
  auto view = last == nullptr ? std::make_shared<ClusterView>() : std::make_shared<ClusterView>(*last);
  view->error.clear();
  ask_head(*view);
  look_at_programs(*view);
  read_sweeps(*view);
  read_reports(*view);
  publish(std::move(view));
  next_look_ = clock_.now() + kBetweenLooks;
}

/// A head that does not answer leaves what it said last.
void Watcher::ask_head(ClusterView& view) {
  try {
    const auto folder = ClusterFolder::find(options_.where.folder).value();
    const auto& address = options_.where.address;
    const auto contact =
        (address.empty() ? folder.contact() : folder.contact(parse_endpoint(address).value())).value();
    view.status =
        wire::decode<wire::StatusAnswer>(folder.ask(contact, wire::StatusAsk{1}, kHeadAnswers).value())
            .value();
    view.jobs = jobs().list();
  } catch (const std::exception& error) {
    view.error = error.what();
  }
}

std::vector<int> Watcher::programs() {
  auto pids = serving_pids();
  pids.resize(std::min(pids.size(), kMostPrograms));
  return pids;
}

/// What the programs of this user on this machine serve: all are asked at once, and one that does not answer
/// in time is shown as such.
void Watcher::look_at_programs(ClusterView& view) {
  view.deployments.clear();
  const auto pids = programs();
  const auto answers = ask_programs(pids, {{"do", "status"}}, kProgramsAnswer);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    const auto& answer = answers[i];
    if (!answer && answer.error().code == ErrorCode::kUnavailable) continue;  // it has just ended
    if (!answer)
      view.deployments.push_back({{"name", "?"}, {"state", answer.error().message()}, {"pid", pids[i]}});
    if (!answer) continue;
    for (auto one : answer->value("deployments", nlohmann::ordered_json::array())) {
      if (!one.is_object()) continue;
      one["pid"] = pids[i];
      view.deployments.push_back(std::move(one));
    }
  }
}

ServingPages Watcher::serving_pages() {
  ServingPages serving;
  const auto pids = programs();
  const auto answers = ask_programs(pids, {{"do", "metrics"}}, kProgramsAnswer);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (!answers[i] && answers[i].error().code == ErrorCode::kUnavailable) continue;
    if (!answers[i]) ++serving.silent;
    if (!answers[i]) continue;
    ++serving.answered;
    for (const auto& page : answers[i]->value("pages", nlohmann::ordered_json::array())) {
      const auto port =
          page.is_object() ? page.value("port", nlohmann::ordered_json()) : nlohmann::ordered_json();
      const auto text =
          page.is_object() ? page.value("text", nlohmann::ordered_json()) : nlohmann::ordered_json();
      if (port.is_number_unsigned() && text.is_string())
        serving.pages.push_back({pids[i], port.get<int>(), text.get<std::string>()});
    }
  }
  return serving;
}

void Watcher::read_sweeps(ClusterView& view) {
  view.sweeps.clear();
  std::map<std::string, Sweep> now;
  for (const std::string& name : sweeps_in(options_.sweeps)) {
    if (now.size() == kMostSweeps) break;
    // Who holds the file's lock is no change of the file.
    const std::string path = options_.sweeps + "/" + name + "/results.jsonl";
    const std::string stamp = stamp_of(path) + " " + std::to_string(holder_of_lock(path));
    const auto known = sweeps_.find(name);
    if (known != sweeps_.end() && known->second.stamp == stamp) {
      now[name] = known->second;
    } else {
      const auto records = read_sweep(options_.sweeps, name);
      now[name] = {stamp, records ? as_json(*records).dump(-1, ' ', false,
                                                           nlohmann::ordered_json::error_handler_t::replace)
                                  : text_of({{"name", name}, {"state", records.error().message()}})};
    }
    view.sweeps.push_back(now[name].line);
  }
  sweeps_ = std::move(now);
}

void Watcher::read_reports(ClusterView& view) {
  view.training.clear();
  for (Report& report : reports_) {
    struct stat info {};
    const bool is_file = ::stat(report.path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
    const std::uintmax_t length = is_file ? static_cast<std::uintmax_t>(info.st_size) : 0;
    if (length < report.offset) report = {report.path, TrainingCurve(report.path)};  // another run's
    std::ifstream file;
    if (length > report.offset) file.open(report.path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(report.offset));
    std::string part(std::size_t{1} << 20, '\0');
    while (file && report.offset < length) {
      file.read(part.data(),
                static_cast<std::streamsize>(std::min<std::uintmax_t>(part.size(), length - report.offset)));
      report.curve.feed(std::string_view(part).substr(0, static_cast<std::size_t>(file.gcount())));
      report.offset += static_cast<std::uintmax_t>(file.gcount());
      if (file.gcount() == 0) break;
    }
    view.training.push_back(text_of(report.curve.as_json()));
  }
}

void Watcher::publish(std::shared_ptr<const ClusterView> view) {
  json all = snapshot_of(*view);
  std::string plain = text_of(all);
  const std::lock_guard lock(mutex_);
  view_ = std::move(view);
  if (plain == plain_) return;  // nothing is new
  plain_ = std::move(plain);
  version_ = run_ + "-" + std::to_string(++count_);
  all["version"] = version_;
  text_ = text_of(all);
}

}  // namespace troupe::cli
