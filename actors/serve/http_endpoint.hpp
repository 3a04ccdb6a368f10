/// Where deployments are reached, in the program that runs them or in a proxy: POST /v1/NAME, KServe's
/// protocol below /v2, GET /healthz, GET /metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/front.hpp"
#include "actors/serve/http/kserve.hpp"
#include "actors/serve/take_over.hpp"
#include "runtime/http/metrics.hpp"
#include "runtime/http/server.hpp"

namespace troupe::serve {

class ProxyFleet;

/// When an endpoint takes the place of another program, by what that serves there.
enum class Takes : std::uint8_t {
  kAllReady,     ///< all of that is ready here
  kServedReady,  ///< what of that is served here is ready: the rest is gone
  kNow,
};

/// Thread-safe.
class HttpEndpoint {
 public:
  /// The one of this program that listens there, or a new one. Port 0: a new one. Throws Unavailable for a
  /// port that somebody else has, BadConfig for one of this program with other TLS files.
  /// `first`: the deployment that is added next; a new one keeps requests until then.
  static std::shared_ptr<HttpEndpoint> at(const http::ServerOptions& options, const std::string& first);
  /// The same in place of another program: it listens from take_over() on.
  static std::shared_ptr<HttpEndpoint> in_place_of(const Predecessor& other, http::ServerOptions options,
                                                   const std::string& first);

  /// `unknown`: deployments that are served here as soon as they are known, a proxy's. Until they are, or
  /// know_all(), requests of deployments wait: nobody hears that nothing is served here, or that there is no
  /// such thing.
  explicit HttpEndpoint(const http::ServerOptions& options, std::optional<Predecessor> other = {},
                        std::set<std::string> unknown = {});
  ~HttpEndpoint();

  /// Throws BadConfig for a name that is taken here.
  void add(const std::shared_ptr<Front>& deployment);
  /// Its requests get 404 from here on. Responses under way are sent to their end first where it was the
  /// last.
  void remove(const std::string& name);
  /// Nobody waits any longer for what is unknown.
  void know_all();
  /// http::Server's.
  bool drain(std::chrono::milliseconds timeout);

  /// Listens in place of the other program, unless it does so already: on its sockets, or, where it has
  /// ended, anew; so do its proxies (ProxyFleet::take_over). Throws Refused where it does not hand them over,
  /// and Unavailable for a port that somebody has.
  void take_over(Takes when);
  /// Throws Unavailable where it waits for the port of a program that serves nothing of what is served here.
  void refuse_foreign_place() const;
  bool listens() const;
  /// What take_over() threw; empty: it listens, or waits for what is to be ready.
  std::string refused() const;
  /// http::Server's, of the program that is replaced.
  std::vector<UniqueFd> listening() const;
  void leave();

  /// The proxies that serve the same on other nodes: those that there are, or new ones.
  std::shared_ptr<ProxyFleet> fleet(const std::function<std::shared_ptr<ProxyFleet>()>& make);

  /// "http://127.0.0.1:8000"
  std::string url() const;
  Endpoint address() const;
  http::Registry& metrics() { return metrics_; }
  /// What GET /metrics answers.
  http::Response measured();
  /// What its server calls. REQUIRES: the endpoint lives.
  http::Handler handler();

 private:
  void take_place_of_other(Takes when);
  std::unique_ptr<http::Server> listen_in_place_of(const Predecessor& other, bool& is_gone);
  std::unique_ptr<http::Server> listen_after(const Predecessor& other);
  bool is_wanted_there(const Predecessor& other, Takes when) const;
  bool hold(http::Request& request, http::Answer& answer);
  void drop(std::uint64_t held);
  void release();
  void handle(http::Request request, http::Answer answer);
  void predict(const std::shared_ptr<Front>& to, http::Request request, http::Answer answer);
  void handle_kserve(const http::KserveRoute& route, http::Request request, http::Answer answer);
  void infer(const std::shared_ptr<Front>& to, const std::string& version, http::Request request,
             http::Answer answer);
  void refuse(http::Answer& answer, http::Response response, const std::string& deployment = {});
  void count_refused(int status, const std::string& deployment);
  http::ServerOptions server_options();
  http::Response health();
  std::shared_ptr<Front> find(const std::string& name) const;
  bool has_ended() const;  ///< it serves nothing any more, and closes
  std::string names() const;
  bool is_closed() const;
  static std::shared_ptr<HttpEndpoint> find_or_make(const http::ServerOptions& options,
                                                    const std::optional<Predecessor>& other,
                                                    const std::string& first);

  http::Registry metrics_;
  const http::ServerOptions options_;
  std::mutex taking_;                 ///< held while it takes over
  mutable std::mutex mutex_;          ///< guards what follows
  std::optional<Predecessor> other_;  ///< whose place it is to take
  std::string refused_;               ///< why it does not
  bool closed_ = false;               ///< its last deployment is gone
  std::map<std::string, std::shared_ptr<Front>> deployments_;
  std::set<std::string> unknown_;
  /// Those whose clients wait: the server bounds their bytes.
  std::map<std::uint64_t, std::pair<http::Request, http::Answer>> held_;
  std::uint64_t last_held_ = 0;
  /// Of what no deployment is asked, by the name of the one that it was for and the status.
  std::map<std::pair<std::string, int>, std::shared_ptr<http::Counter>> refusals_;
  std::shared_ptr<ProxyFleet> fleet_;     ///< null: nobody asked for one
  std::unique_ptr<http::Server> server_;  ///< the last to come, the first to go
};

}  // namespace troupe::serve
