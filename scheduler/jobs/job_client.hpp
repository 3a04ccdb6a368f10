/// What a program asks a running cluster about submitted jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"

namespace troupe {

/// A job to be run. Nothing of it goes through a shell.
struct JobSpec {
  /// Any executable: a path of this machine, whose file travels to a node that has no such file there, or a
  /// name in the nodes' PATH. A path from `working_dir` on, if that is given, or from `node_dir` on.
  std::string program;
  std::vector<std::string> args{};  ///< as the program gets them
  std::string name{};               ///< for people; of the jobs that have not ended one has it
  bool replace = false;             ///< the job that has its name is stopped first
  /// A folder of this machine: all that it holds travels, and the job runs in a copy of its own. Default: an
  /// empty folder of the job's own.
  std::string working_dir{};
  /// Instead: a folder that every node has, in which it runs, and nothing travels.
  std::string node_dir{};
  std::map<std::string, std::string> env{};   ///< beside the node's own environment
  double num_cpus = 0;                        ///< that the program itself holds while it runs
  double num_gpus = 0;                        ///< parts of one, or whole ones
  std::int64_t memory = 0;                    ///< bytes; above them it may be ended, see ActorOptions::memory
  std::map<std::string, double> resources{};  ///< custom ones that it holds
  std::map<std::string, std::string> labels{};  ///< that its node must have
  int retries = 0;                              ///< how often it is started again when it fails
  int priority = 0;                             ///< of its queue's jobs that wait the highest starts first
  std::string queue{};                          ///< empty: "default" (troupe queue list)
  /// Default: a new one. Submitted twice under one id, a job runs once.
  std::string id{};
  /// The shared libraries that the program needs, but the C library's, travel with it: a node that has none
  /// of them runs it. It runs in a copy of the folder that travels, or in a folder with nothing else.
  bool with_libraries = false;
};

enum class JobStatus { kQueued, kStarting, kRunning, kStopping, kSucceeded, kFailed, kStopped };
/// "QUEUED", ...
const char* to_string(JobStatus status);

struct JobInfo {
  std::string id;
  std::string name;
  std::vector<std::string> program;  ///< with its arguments
  JobStatus status = JobStatus::kQueued;
  std::string message;  ///< why it is in that state
  std::string why;      ///< the same; of a queued one, what it waits for now
  int attempt = 0;      ///< that runs, or was the last: from 1 on
  int retries = 0;
  int priority = 0;
  std::string queue;
  double num_cpus = 0;
  double num_gpus = 0;
  std::int64_t memory = 0;
  std::map<std::string, double> resources{};
  std::map<std::string, std::string> labels{};
  std::string node;               ///< name of the node of the last attempt; empty: none
  std::string node_id;            ///< its id
  std::int64_t submitted_ms = 0;  ///< wall clock, milliseconds since 1970; 0: not yet
  std::int64_t started_ms = 0;
  std::int64_t ended_ms = 0;
  /// Of the attempt that ended last. 128 + number for a signal; none: it never ran, or its node died.
  std::optional<int> driver_exit_code{};
  /// Of a job that has ended, as a shell sees it: 0 if it succeeded, else its program's, or 1 (143 if it was
  /// stopped) where that is none or 0.
  int exit_code = 0;

  bool has_ended() const { return status >= JobStatus::kSucceeded; }
};

/// A queue, and what its jobs hold together: their programs, and what these spawn.
struct JobQueue {
  std::string name;
  std::optional<double> cpus{};  ///< its quota; none: there is no limit
  std::optional<double> gpus{};
  std::optional<std::int64_t> memory{};       ///< bytes
  std::map<std::string, double> resources{};  ///< custom ones: those that it names have one
  double weight = 1;
  double cpus_used = 0;
  double gpus_used = 0;
  std::int64_t memory_used = 0;
  std::map<std::string, double> resources_used{};
  /// The largest of its parts of the cluster's CPUs, GPUs, memory and custom resources, divided by its
  /// weight: the least goes first.
  double share = 0;
  int waits = 0;  ///< jobs
  int runs = 0;   ///< jobs that have a node
};

/// Why a job waits: what it asks for, what nodes lack, who starts before it. Of one that does not wait there
/// is no more than the sentence.
struct JobReport {
  JobInfo job;
  /// "does not wait". "later": its next attempt has its time. "waits": no node has the room now. "held": a
  /// node has it, which is kept for the job that starts next. "never": no node of the cluster is that large.
  /// "quota": its queue may hold no more now.
  std::string verdict;
  std::string sentence;
  int position = 0;                ///< 1: it starts next; 0: it is not in the queue
  std::vector<std::string> ahead;  ///< jobs that start before it, 16 at most

  struct Resource {
    std::string name;  ///< "CPU", "GPU", "memory" (in bytes), or a custom one's
    double need = 0;
    double most_free = 0;  ///< on one node
    double most = 0;       ///< that one node has
    double free = 0;       ///< on all nodes
    double total = 0;
  };
  std::vector<Resource> resources;
  struct Node {
    std::string name;
    std::vector<std::string> lacks;  ///< empty: it has the room
  };
  std::vector<Node> nodes;  ///< those that lack least first, 16 at most
  int more_nodes = 0;       ///< that are not among them
  struct Holder {
    std::string job, node;  ///< its id; of a program that nobody submitted its name
    double num_cpus = 0;
    double num_gpus = 0;
    std::string what{};  ///< of that job, and what frees it: "its program, until it ends"
    std::int64_t memory = 0;
    std::map<std::string, double> resources{};
  };
  std::vector<Holder> holders;   ///< who holds what it asks for, on these nodes, 16 at most
  std::vector<JobQueue> queues;  ///< its own, then others whose jobs wait, 16 at most
};

/// A piece of a job's output.
struct JobOutput {
  enum Stream {
    kOutput,  ///< its standard output
    kErrors,  ///< its standard error
    kNote,    ///< of troupe: what is gone, and that another attempt begins. Whole lines
  } stream = kOutput;
  std::string bytes;
};

struct OutputOptions {
  bool follow = false;     ///< on until the job has ended
  std::int64_t tail = -1;  ///< the last lines alone, of one attempt; below 0: all that is kept
  int attempt = 0;         ///< that one alone, from 1 on; 0: all, or with `tail` the latest
  /// What was written from then on alone (wall clock of its node, milliseconds since 1970): `tail` counts
  /// lines of that.
  std::int64_t since_ms = 0;
  /// Asked several times a second: true ends the reading.
  std::function<bool()> is_enough{};
};

struct JobClientOptions {
  std::string address{};  ///< HOST:PORT of the head; default: as the folder remembers
  std::string folder{};   ///< of the keys; default: ClusterFolder::default_path()
};

/// Not thread-safe. Every member may wait for the head, which may be on its way back, for ten seconds, and
/// throws: Refused (what the head says, or it does not know the folder's key), BadConfig, Unavailable,
/// Timeout.
class JobClient {
 public:
  explicit JobClient(const JobClientOptions& options = {});
  JobClient(JobClient&&) noexcept;
  JobClient& operator=(JobClient&&) noexcept;
  ~JobClient();

  /// Returns its id once the head has recorded it, and has what travels with it. Also throws BadInput for a
  /// program with a path that is not there, is not executable or is of another architecture, and for a
  /// working directory that is not there or holds what cannot travel; LimitExceeded for one of more than
  /// 10 GB. With `replace` it waits until the job that it replaces has ended, and for five minutes
  /// replaces those, too, that others submit in its place meanwhile. `say`, if any, hears of what
  /// takes more than a second, and every ten seconds again: "packs what travels: 120 of 546 MB".
  /// `before_record`, if any, is called when all has travelled, before the head is asked for the job: until
  /// then there is none. Where the head has lost what travelled it is called again.
  std::string submit(const JobSpec& job, const std::function<void(const std::string&)>& say = {},
                     const std::function<void()>& before_record = {});
  JobInfo status(const std::string& id);
  /// The newest first.
  std::vector<JobInfo> list();
  /// Why it waits, in full.
  JobReport why(const std::string& id);
  std::vector<JobQueue> queues();
  /// Makes a queue, or changes its quota and weight: what it uses, and does, does not count. For the owner of
  /// the head's folder alone. Throws BadInput for what makes no sense.
  void set_queue(const JobQueue& queue);
  /// Throws Refused while jobs of it wait or run. "default" loses its quota and weight, and stays.
  void remove_queue(const std::string& name);
  /// Asks its program to end (SIGTERM to its process group, SIGKILL after 10 s), and does not wait for that.
  JobInfo stop(const std::string& id);
  /// Until it has ended. A head that is away for a minute ends the wait, too.
  JobInfo wait(const std::string& id);
  /// Hands its output to `take`, and returns the job as it was at the end. What is gone is said by a note.
  JobInfo read_output(const std::string& id, const OutputOptions& options,
                      const std::function<void(const JobOutput&)>& take);

 private:
  void stop_named(const std::string& name, const std::string& id);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
