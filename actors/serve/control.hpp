/// What `troupe serve` asks a program that serves, over its socket (runtime/link/socket/serving_sockets.hpp).
/// Question and answer are JSON:
///
/// ```
/// {"do":"status"} {"pid":77,"deployments":[{"name":"digits","port":8000,...}],"refused":{"name":"why",...},
///                  "job":"...","config":"..."}
/// {"do":"applied","config":"..."}                       {"applied":true}
/// {"do":"scale","name":"digits","min":1,"max":4}        {"deployment":{...}}
/// {"do":"update","name":"digits","weights":"/a/file"}   {"version":2}
/// {"do":"rollback","name":"digits"}                     {"version":1}
/// {"do":"stop","name":"digits"}                         {"stopped":true}
/// {"do":"metrics"}                                      {"pages":[{"port":8000,"text":"# HELP ..."}]}
/// {"do":"hand_over","port":8000}                        {"sockets":8}, and they come with it
/// {"do":"taken","port":8000}                            {"leaves":true}
/// {"do":"not_taken","port":8000}                        {"stays":true}
///                                            any of it: {"error":{"what":"...","why":"...","todo":"..."}}
/// ```
/// `"port"` beside the name tells deployments of one name apart. An answer comes when what was asked for is
/// done. `"refused"` are those whose place another program keeps. `"job"` is the submitted job that the
/// program is, or null; `"config"` what troupe serve run has applied to it last, as TOML ("applied" keeps
/// that: nothing else is done with it). A program that takes this one's place asks it to hand over where it
/// listens, and says when it listens there (take_over.hpp), or that it does not. Another one is refused for
/// as long as the first that was given them lives and has not said that it does not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/serve/deployment_machine.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::serve {

/// A deployment, as it is told.
struct DeploymentStatus {
  std::string name, url;
  int port = 0;
  bool stopped = false;   ///< it serves nothing any more, or not yet, and is told of no more
  std::string refused{};  ///< why it does not take the place of another program; empty: it may yet
  DeploymentMachine::View view{};
  std::string weights_from{}, update_from{};  ///< Deployment::weights_from
  std::vector<int> pids;                      ///< of the replicas that are ready
  std::string last_failure{};                 ///< of a replica, and why; empty: none
  std::string fleet{};  ///< of proxies on other nodes, which serve it, too; empty: none do
  std::string node{};   ///< of a proxy: where it is
};

/// A deployment that can be asked. Its methods are called in threads of the Control's, several at a time, and
/// may take long; what they throw is the answer.
class Controlled {
 public:
  virtual ~Controlled() = default;
  virtual DeploymentStatus status() = 0;
  virtual void scale(Replicas replicas) = 0;
  virtual VersionId update_from(const std::string& path) = 0;
  virtual VersionId roll_back() = 0;
  virtual void stop_serving() = 0;
  /// The sockets on which its requests come: for a program that takes its place.
  virtual std::vector<UniqueFd> listening() = 0;
  /// That program listens there: answer what was accepted, and end. Does not wait for that.
  virtual void leave() = 0;
  /// What Prometheus reads at its port, of all deployments there.
  virtual std::string metrics() = 0;
};

/// The socket of this program, while a deployment has it. Thread-safe.
class Control {
 public:
  /// Null where there can be no socket: that is logged, and the deployment serves all the same.
  static std::shared_ptr<Control> of_this_program();

  explicit Control(UniqueFd listening);
  /// Ends when the last question is answered.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void add(Controlled& deployment);
  /// Waits until nobody asks it any more.
  void remove(Controlled& deployment);
  /// The answer to a packet: for tests, too. Total. `fds`: what comes with it. `asker`: the process that
  /// asks; 0: not known.
  std::string answer(std::string_view question, std::vector<UniqueFd>* fds = nullptr, int asker = 0);

 private:
  class Asking;
  /// Who was given the sockets of a port.
  struct Successor {
    int pid = 0;
    UniqueFd process;  ///< readable once it has ended
  };

  void listen();
  void talk(UniqueFd connection, int asker);
  void give_place(int port, int asker);
  void refuse_given_place(int port, int asker);
  void take_place_back(int port, int asker);

  const UniqueFd listening_, wake_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::map<Controlled*, int> asked_;     ///< how many ask it now
  std::map<int, Successor> successors_;  ///< by port
  int talks_ = 0;
  bool ends_ = false;
  std::string config_;  ///< what was applied last
  std::thread thread_;
};

}  // namespace troupe::serve
