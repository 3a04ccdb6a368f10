/// What the node's shell holds of submitted jobs: their folders, programs, output, and the sockets by which
/// their drivers come in. (submissions.hpp decides on them.)
///
/// ```
/// <folder>/jobs/<slot>/<id>/work/                where it runs, unless its submitter says where: empty, or
/// the
///                                                folder that travelled
///                          /program/             the executable that travelled, if it did alone
///                          /output/<attempt>/    its segments (log_segments.hpp)
///                     /.packages/                those that came to this node; none is older than the node
///                     /.executables/             of detached actors (package_store.hpp)
///                     /.removed-<any>/           what is being removed
/// ```
/// A slot is one node's as long as it lives; the node that is started after it takes the first one that is
/// free.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/link/socket/socket_link.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/node/look_thread.hpp"
#include "runtime/node/node_events.hpp"
#include "runtime/node/output_thread.hpp"
#include "runtime/node/program.hpp"
#include "runtime/package/package_shelf.hpp"
#include "runtime/package/work_thread.hpp"

namespace troupe::node {

/// Where a driver finds the socket of the node that started it. The name is one program's alone: what that
/// leaves behind is found by it.
inline constexpr const char* kNodeSocketVariable = "TROUPE_NODE_SOCKET";
/// The job that a process belongs to, for whoever wants to know.
inline constexpr const char* kJobIdVariable = "TROUPE_JOB_ID";

/// The package that the program travelled in, if libraries came with it: its workers on other nodes need
/// them.
inline constexpr const char* kJobLibrariesVariable = "TROUPE_JOB_LIBRARIES";

/// In a package, the folder of shared libraries that the program's loader looks into first.
inline constexpr const char* kLibrariesFolder = ".troupe-libraries";

/// Everything runs in the loop's thread, but for output_ and what is posted to work_.
class JobPrograms {
 public:
  using Tell = std::function<void(NodeEvent)>;

  JobPrograms(EventLoop& loop, Tell tell) : loop_(loop), tell_(std::move(tell)), looks_(loop) {}
  ~JobPrograms();
  JobPrograms(const JobPrograms&) = delete;
  JobPrograms& operator=(const JobPrograms&) = delete;

  /// Takes a slot below `folder`, and tells what is there (JobFilesFound). Errors: kIo.
  Result<void> open(const std::string& folder);

  void unpack(const UnpackJob& what);
  void take(const TakeJobPart& what);
  void drop_package(const std::string& package);
  void start(const StartProgram& what);
  void signal(const std::string& id, int signal);
  void kill(const std::string& id);
  /// Of the program of a submission, which leads a process group; -1: it does not run.
  pid_t pid_of(const std::string& id) const;
  /// At once for who looks; the disk takes its time.
  void remove_files(const std::string& id);
  Result<wire::LogPart> read(const wire::LogAsk& ask) const;

  struct Knock {
    std::string id;
    SocketLink link;
    UniqueFd executable;
    Instant since{};
  };
  /// The connection of a DriverKnocked, which is the caller's from now on. None: it is gone.
  std::optional<Knock> take_knock(std::uint64_t connection);
  /// Where the shared libraries are that travelled with a job; empty: none did.
  std::string libraries_of(const std::string& id) const;
  /// Where this node keeps things; empty: nowhere.
  const std::string& folder() const { return slot_; }
  /// Ids of the jobs whose programs run, and their processes.
  std::vector<std::pair<std::string, pid_t>> running() const;
  /// Drops connections that have said nothing for long.
  void tick();

 private:
  struct Running {
    std::int32_t attempt = 0;
    Program program;
    std::string name;  ///< of its socket
    UniqueFd socket;
    std::optional<ProgramExit> exit{};
  };
  std::string folder_of(const std::string& id) const { return slot_ + "/" + id; }
  JobUnpacked prepare(const cluster::SubmissionSpec& spec);
  Result<Running> run(const StartProgram& what);
  void program_ended(const std::string& id);
  void remove_later(const std::string& folder);
  void finish(const std::string& id);
  void somebody_connects(const std::string& id);
  void knock_readable(std::uint64_t connection);

  EventLoop& loop_;
  const Tell tell_;
  MonotonicClock clock_;
  std::string slot_;  ///< empty: this node runs no jobs
  UniqueFd lock_;
  OutputThread output_;
  std::map<std::string, Running> running_;
  std::map<std::uint64_t, Knock> knocks_;
  std::uint64_t last_knock_ = 0;
  std::optional<PackageShelf> shelf_;  ///< of work_'s thread, once it is open
  std::set<std::string>
      damaged_;       ///< packages that come anew, since this disk spoilt them; of work_'s thread
  LookThread looks_;  ///< for what programs left behind
  WorkThread work_;   ///< the last: it uses the others
};

}  // namespace troupe::node
