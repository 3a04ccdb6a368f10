/// Asks the head and reads files, in one thread, while somebody looks: the server's threads wait for nobody.
#pragma once

#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/http/server.hpp"
#include "scheduler/cli/dashboard/metrics.hpp"
#include "scheduler/cli/dashboard/snapshot.hpp"
#include "scheduler/cli/dashboard/training_curve.hpp"

namespace troupe::cli {

struct DashboardOptions {
  JobClientOptions where;                ///< the head, and the folder of the keys
  std::string bind = "127.0.0.1";        ///< numeric address of this machine
  std::uint16_t port = 8265;             ///< 0: any free one
  std::string sweeps = "results";        ///< the folder where sweeps keep their records
  std::vector<std::string> reports;      ///< files that training runs write with .events_json
  std::string tls_certificate, tls_key;  ///< PEM files; empty: HTTP without TLS
};

class Watcher {
 public:
  explicit Watcher(const DashboardOptions& options);
  /// Ends the thread; who waits gets a 503.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Answers with the snapshot once it is another one than `version`; with 204 after twenty seconds.
  void snapshot(const std::string& version, http::Answer answer);
  /// What Prometheus reads: of a look that is no older than a second.
  void metrics(http::Answer answer);
  /// A page of the actors, of such a look.
  void actors(std::string_view query, http::Answer answer);
  /// The last lines of a job's output, or why it waits.
  void logs(std::string id, std::size_t lines, http::Answer answer);
  void why(std::string id, http::Answer answer);
  /// The sweep's own page.
  void sweep(std::string name, http::Answer answer);

 private:
  struct Waiter {
    std::string version;
    Instant until;
    http::Answer answer;
  };
  struct Sweep {
    std::string stamp;  ///< of the file, when it was read
    std::string line;
  };
  struct Report {
    std::string path;
    TrainingCurve curve;
    std::uintmax_t offset = 0;
  };
  void run();
  void look();
  std::shared_ptr<const ClusterView> look_anew();
  void ask_head(ClusterView& view);
  static std::vector<int> programs();
  static void look_at_programs(ClusterView& view);
  static ServingPages serving_pages();
  void read_sweeps(ClusterView& view);
  void read_reports(ClusterView& view);
  void publish(std::shared_ptr<const ClusterView> view);
  void answer_waiters();
  void later(std::function<void()> work, http::Answer& answer, bool is_look = true);
  JobClient& jobs();

  const DashboardOptions options_;
  const std::string
      run_;  ///< begins every version: a page that was left open sees that this is another program
  MonotonicClock clock_;
  std::unique_ptr<JobClient> jobs_;      ///< the thread's
  std::map<std::string, Sweep> sweeps_;  ///< the thread's
  std::vector<Report> reports_;          ///< the thread's
  Instant next_look_{};                  ///< the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;                       ///< guarded by mutex_, as what follows
  Instant looked_at_{};                     ///< when somebody asked last
  std::deque<std::function<void()>> work_;  ///< questions of readers
  std::vector<Waiter> waiters_;
  std::shared_ptr<const ClusterView> view_;
  std::string plain_;           ///< the snapshot as JSON, without its version
  std::string text_, version_;  ///< with it
  std::uint64_t count_ = 0;
  std::thread thread_;
};

}  // namespace troupe::cli
