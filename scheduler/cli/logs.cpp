// troupe logs: what a job or an actor has written, or a node has logged.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <limits>
#include <thread>
#include <utility>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/standard_output.hpp"
#include "runtime/node/log_segments.hpp"
#include "scheduler/cli/actor_output.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/job_names.hpp"
#include "scheduler/cli/parked_jobs.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/jobs/head_session.hpp"

namespace troupe::cli {
namespace {

constexpr const char* kLogsFooter =
    "What a job has written (troupe job logs has more of that); what an actor's process has, life for life;\n"
    "or what a node has logged: which nodes came and went, and why.\n"
    "  troupe logs sums\n"
    "  troupe logs gpu-7 --since 10m\n"
    "  troupe logs 5b6a3c1c2ad4ab0e --follow            an actor, by its id or name\n"
    "  troupe logs --node gpu-7 --tail 20 --follow\n"
    "--follow ends when the job or actor has ended, or the node is gone, and says so; Ctrl-C ends it, too.\n"
    "Exit code: 0, 1 where there is none of that name or it cannot be read.\n";

constexpr std::uint32_t kPieceBytes = 256 << 10;
/// A log may be older than anybody wants to read.
constexpr std::uint64_t kMostLogBytes = std::uint64_t{64} << 20;

struct LogsWords {
  JobClientOptions where;
  std::string name, since;
  bool is_job = false, is_node = false, is_actor = false;
  OutputOptions reading;
};

/// Lines of a node's log, some of which are wanted.
class Lines {
 public:
  Lines(std::int64_t tail, std::int64_t since_ms) : tail_(tail), since_ms_(since_ms) {}

  /// Lines were left out for want of a time.
  bool lacks_times() const { return lacks_times_; }
  void take(wire::ByteView bytes) {
    rest_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::size_t begin = 0;
    for (std::size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1)
      line(rest_.substr(begin, end + 1 - begin));
    rest_.erase(0, begin);
  }
  /// All that was there is read: from now on lines are printed as they come.
  void flush() {
    for (const std::string& text : kept_) print(text);
    kept_.clear();
    tail_ = -1;
    std::fflush(stdout);
  }
  void end() {
    if (!rest_.empty()) line(std::exchange(rest_, {}) + "\n");
    flush();
  }

 private:
  /// One without a time belongs to the one before it.
  void line(std::string text) {
    const auto time = time_of_line(text);
    if (time) is_wanted_ = *time >= since_ms_;
    has_times_ = has_times_ || time.has_value();
    lacks_times_ = since_ms_ > 0 && !has_times_;
    if (since_ms_ > 0 && !is_wanted_) return;
    if (tail_ < 0) return print(text);
    kept_.push_back(std::move(text));
    if (static_cast<std::int64_t>(kept_.size()) > tail_) kept_.pop_front();
  }
  static void print(const std::string& text) { std::printf("%s", escape_text(text).c_str()); }

  std::int64_t tail_;
  const std::int64_t since_ms_;
  bool is_wanted_ = false;
  bool has_times_ = false, lacks_times_ = false;
  std::string rest_;
  std::deque<std::string> kept_;
};

int print_log_of_node(const LogsWords& words, NodeId of) {
  HeadSession head(ClusterFolder::find(words.where.folder).value(),
                   words.where.address.empty() ? std::nullopt
                                               : std::optional(parse_endpoint(words.where.address).value()));
  const auto ask = [&](std::uint64_t offset) -> Result<wire::LogPart> {
    auto bytes = head.ask(
        wire::LogAsk{
            .id = std::string(node::kNodeLog) + to_string(of), .offset = offset, .most_bytes = kPieceBytes},
        kAnswers);
    if (!bytes) return bytes.error();
    return wire::decode<wire::LogPart>(*bytes);
  };
  const auto read = [&](std::uint64_t offset) { return ask(offset).value(); };
  Lines lines(words.reading.tail, words.reading.since_ms);
  const std::uint64_t end = read(std::numeric_limits<std::uint64_t>::max()).end;
  std::uint64_t at = end > kMostLogBytes ? end - kMostLogBytes : 0;
  if (at > 0)
    std::fprintf(stderr, "troupe: the first %llu bytes are left out\n", static_cast<unsigned long long>(at));
  while (at < end) {
    const auto part = read(at);
    if (part.bytes.empty()) break;  // somebody made it shorter
    lines.take(part.bytes);
    at = part.offset + part.bytes.size();
  }
  if (lines.lacks_times())
    std::fprintf(stderr,
                 "troupe: no line has a time, so that --since leaves all out: it is for logs of --detach, or "
                 "with TROUPE_LOG_TIME=1\n");
  if (!words.reading.follow) {
    lines.end();
    return 0;
  }
  const MonotonicClock clock;
  Instant heard = clock.now();
  for (lines.flush();; lines.flush()) {
    auto part = ask(at);
    if (part) {
      heard = clock.now();
      lines.take(part->bytes);
      at = part->offset + part->bytes.size();
    } else if (part.error().code == ErrorCode::kRefused || clock.now() - heard > kAway) {
      lines.end();
      const bool is_gone = part.error().code == ErrorCode::kRefused;
      std::fprintf(stderr, "troupe: the log ends here: %s\n",
                   is_gone ? ("node " + escape_name(words.name) + " is gone").c_str()
                           : escape_text(part.error().message()).c_str());
      return is_gone ? 0 : 1;
    }
    if (has_output_failed()) return 1;
    if (!part || part->bytes.empty()) std::this_thread::sleep_for(kLook);
  }
}

int print_logs(const LogsWords& words) {
  if (words.name.empty())  // of a script whose variable is empty: most jobs have no name
    throw_error({ErrorCode::kBadInput, "cannot print logs", "the name is empty",
                 "give the id or name of a job, an actor or a node"});
  std::string job;
  if (!words.is_node && !words.is_actor) {
    JobClient jobs(words.where);
    job = job_called(jobs, words.name);
  }
  if (words.is_job && job.empty()) {
    if (const auto parked = find_parked(words.where, words.name)) refuse_logs_of_parked(*parked);
    throw_error({ErrorCode::kRefused, "there is no job " + words.name,
                 "none of that id or name was submitted to this cluster, or its record was dropped since",
                 "troupe job list shows those that there are"});
  }
  if (words.is_job) return print_output(words.where, job, words.reading);
  const auto all = ask_status(words.where.folder, words.where.address);
  if (words.is_actor) return print_output_of_actor(words.where, all, words.name, words.reading);
  if (words.is_node) return print_log_of_node(words, node_called(all, words.name).node.id);
  const bool is_node = std::any_of(all.nodes.begin(), all.nodes.end(), [&](const auto& n) {
    return (!n.node.gateway && n.node.name == words.name) || to_string(n.node.id) == words.name;
  });
  if (is_node && !job.empty())
    throw_error({ErrorCode::kBadInput, "cannot tell what is meant",
                 "both a job and a node are called " + words.name, "give --job or --node"});
  if (!job.empty()) return print_output(words.where, job, words.reading);
  if (is_node) return print_log_of_node(words, node_called(all, words.name).node.id);
  return print_output_of_actor(words.where, all, words.name, words.reading);
}

}  // namespace

int logs(int argc, char** argv) {
  LogsWords words;
  CLI::App app("Prints what a job or an actor has written, or a node has logged.", "troupe logs");
  app.footer(kLogsFooter);
  app.add_option("name", words.name, "Id or name of a job, an actor or a node")->required();
  auto* is_job = app.add_flag("--job", words.is_job, "A job is meant");
  auto* is_node = app.add_flag("--node", words.is_node, "A node is meant")->excludes(is_job);
  app.add_flag("--actor", words.is_actor, "An actor is meant")->excludes(is_job)->excludes(is_node);
  app.add_flag("--follow,-f", words.reading.follow, "Go on with what is written meanwhile");
  app.add_option("--tail", words.reading.tail, "The last lines alone")->check(whole_number(0, 1'000'000));
  app.add_option("--since", words.since, kSinceHelp)->check(since_time());
  add_head_options(app, words.where.folder, words.where.address);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  words.reading.since_ms = read_since(words.since);
  return print_logs(words);
}

}  // namespace troupe::cli
