#include "runtime/link/zmq/zmq_transport.hpp"

#include "runtime/link/zmq/zmq_client.hpp"
#include "runtime/link/zmq/zmq_loop.hpp"
#include "runtime/link/zmq/zmq_server.hpp"

namespace troupe {
namespace {

class ZmqTransport final : public Transport {
 public:
  explicit ZmqTransport(std::unique_ptr<zmq_link::ZmqLoop> loop) : loop_(std::move(loop)) {}

  Result<std::unique_ptr<LinkServer>> serve(ServeOptions options, ServerHandlers handlers) override {
    try {
      return zmq_link::ZmqServer::start(*loop_, std::move(options), std::move(handlers));
    } catch (const zmq::error_t& error) {
      return ErrorInfo{ErrorCode::kIo, "cannot create a ZeroMQ socket", error.what(), "raise ulimit -n"};
    }
  }
  Result<std::unique_ptr<LinkClient>> connect(ConnectOptions options, ClientHandlers handlers) override {
    return zmq_link::ZmqClient::start(*loop_, std::move(options), std::move(handlers));
  }

 private:
  std::unique_ptr<zmq_link::ZmqLoop> loop_;
};

}  // namespace

std::unique_ptr<Transport> make_zmq_transport(const Clock& clock) {
  return std::make_unique<ZmqTransport>(zmq_link::ZmqLoop::start(clock).value());
}

}  // namespace troupe
