// troupe dashboard: a page of the cluster, its jobs, sweeps and training runs, for a browser. It changes
// nothing.
#include "scheduler/cli/dashboard/dashboard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <span>

#include "runtime/core/fd.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/security/secret.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/dashboard/dashboard_page.hpp"
#include "scheduler/cli/dashboard/watcher.hpp"
#include "scheduler/init/cluster_folder.hpp"

namespace troupe::cli {
namespace {

using http::Answer;
using http::error_response;
using http::Request;
using http::Response;

constexpr std::chrono::seconds kDrains{2};

bool same_secret(std::string_view a, std::string_view b) {
  return equal_in_constant_time(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

/// Nothing from elsewhere, no frames, no guessing of types.
Response page_response() {
  Response response;
  response.content_type = "text/html; charset=utf-8";
  response.body = kDashboardPage;
  return response;
}
void protect(Response& response) {
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
}

class Dashboard {
 public:
  explicit Dashboard(const DashboardOptions& options)
      : bind_(options.bind),
        token_(is_loopback(options.bind) ? "" : to_hex(Secret<16>::generate().reveal())),
        has_tls_(!options.tls_certificate.empty()),
        watcher_(options) {}

  /// Needed by who comes from another machine; empty on loopback, where only this machine's users come.
  const std::string& token() const { return token_; }

  void handle(Request request, Answer answer) {
    if (auto refused = refusal(request)) return answer(*std::move(refused));
    const std::string_view path = request.path;
    if (path == "/") {
      Response page = page_response();
      protect(page);
      if (!token_.empty())
        page.headers.emplace_back("Set-Cookie", "troupe=" + token_ + "; HttpOnly; SameSite=Strict; Path=/" +
                                                    (has_tls_ ? "; Secure" : ""));
      return answer(std::move(page));
    }
    if (path == "/healthz") return answer(Response{.body = "{\"status\": \"ok\"}"});
    if (path == "/metrics") return watcher_.metrics(std::move(answer));
    if (path == "/api/snapshot")
      return watcher_.snapshot(parameter_of(request.query, "since").value_or(""), std::move(answer));
    if (path == "/api/actors") return watcher_.actors(request.query, std::move(answer));
    if (path.starts_with("/sweeps/"))
      return named(path.substr(8), "", answer,
                   [&](std::string name) { watcher_.sweep(std::move(name), std::move(answer)); });
    if (path.starts_with("/api/jobs/")) {
      if (path.ends_with("/logs"))
        return named(path.substr(10), "/logs", answer,
                     [&](std::string id) { watcher_.logs(std::move(id), 200, std::move(answer)); });
      if (path.ends_with("/why"))
        return named(path.substr(10), "/why", answer,
                     [&](std::string id) { watcher_.why(std::move(id), std::move(answer)); });
    }
    answer(error_response(404, "there is no such page: see /"));
  }

 private:
  /// `path` without its end, decoded.
  template <class Use>
  void named(std::string_view path, std::string_view end, Answer& answer, Use use) {
    auto name = http::percent_decode(path.substr(0, path.size() - end.size()));
    if (!name || name->empty()) return answer(error_response(404, "name it"));
    use(*std::move(name));
  }

  std::optional<Response> refusal(const Request& request) const {
    if (request.method != "GET") {
      Response response = error_response(405, "the dashboard changes nothing: use GET");
      response.headers.emplace_back("Allow", "GET");
      return response;
    }
    if (token_.empty()) {
      if (is_own_host(request.headers.find("Host").value_or(""), bind_)) return std::nullopt;
      return error_response(403, "the dashboard is for this machine: ask for it as localhost");
    }
    if (same_secret(parameter_of(request.query, "token").value_or(""), token_)) return std::nullopt;
    std::string_view cookies = request.headers.find("Cookie").value_or("");
    constexpr std::string_view kName = "troupe=";
    for (std::size_t at = cookies.find(kName); at != std::string_view::npos; at = cookies.find(kName, at + 1))
      if (same_secret(cookies.substr(at + kName.size(), token_.size()), token_)) return std::nullopt;
    return error_response(401, "open the address that troupe dashboard printed: it has the token");
  }

  const std::string bind_, token_;
  const bool has_tls_;
  Watcher watcher_;
};

/// Until SIGINT or SIGTERM.
void wait_for_signal(const UniqueFd& signals) {
  pollfd ready{signals.get(), POLLIN, 0};
  while (::poll(&ready, 1, -1) < 0 && errno == EINTR) {
  }
}

}  // namespace

int dashboard(const DashboardOptions& options) {
  // Refused before a port is taken: a folder that knows no cluster.
  const auto folder = ClusterFolder::find(options.where.folder).value();
  if (options.where.address.empty()) static_cast<void>(folder.contact().value());
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGINT);
  ::sigaddset(&ends, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // of every thread that comes
  const UniqueFd signals(::signalfd(-1, &ends, SFD_CLOEXEC));
  if (!signals)
    throw_error(io_error("cannot wait for Ctrl-C", errno, "raise the limit on descriptors (ulimit -n)"));

  Dashboard pages(options);
  http::Server server(
      {.host = options.bind,
       .port = options.port,
       .threads = 1,
       .tls_certificate = options.tls_certificate,
       .tls_key = options.tls_key,
       .max_body_bytes = 1024,
       .max_connections = 512},
      [&](Request request, Answer answer) { pages.handle(std::move(request), std::move(answer)); });
  const std::string query = pages.token().empty() ? "" : "?token=" + pages.token();
  std::printf("%s://%s/%s\n", options.tls_certificate.empty() ? "http" : "https",
              to_string(server.address()).c_str(), query.c_str());
  std::fflush(stdout);
  wait_for_signal(signals);
  server.drain(kDrains);
  return 0;
}

}  // namespace troupe::cli
