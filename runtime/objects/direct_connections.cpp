#include "runtime/objects/direct_connections.hpp"

#include <cstdlib>

#include "runtime/core/log.hpp"
#include "runtime/objects/direct_client.hpp"
#include "runtime/objects/direct_server.hpp"

namespace troupe::objects {
namespace {

bool is_encryption_wanted() {
  const char* text = std::getenv("TROUPE_ENCRYPT_OBJECTS");
  return text != nullptr && *text != '\0' && std::string_view(text) != "0";
}

/// Each end is started when it is needed.
class TcpConnections final : public DirectConnections {
 public:
  DirectAddress address(const std::string& host, const Find& find) override {
    if (server_ == nullptr && !cannot_serve_) {
      auto started = DirectServer::start(host, find);
      cannot_serve_ = !started.ok();
      if (started) {
        server_ = *std::move(started);
      } else {
        log(LogLevel::kWarning,
            "objects of this process go over the links, slowly: " + started.error().message());
      }
    }
    return server_ == nullptr ? DirectAddress() : server_->address();
  }
  bool fetch(Wanted wanted, Then then) override {
    if (client_ == nullptr) client_ = std::make_unique<DirectClient>();
    return client_->fetch(std::move(wanted), std::move(then));
  }
  void abort(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason) override {
    if (client_ != nullptr) client_->abort(is_down, reason);
  }

 private:
  bool cannot_serve_ = false;
  std::unique_ptr<DirectServer> server_;
  std::unique_ptr<DirectClient> client_;  // ends first
};

}  // namespace

std::unique_ptr<DirectConnections> tcp_connections() {
  return is_encryption_wanted() ? nullptr : std::make_unique<TcpConnections>();
}

}  // namespace troupe::objects
