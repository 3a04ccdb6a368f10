#include "runtime/link/zmq/zmq_transport.hpp"

#include "runtime/link/zmq/zmq_client.hpp"
#include "runtime/link/zmq/zmq_server.hpp"

namespace troupe {

namespace {

class ZmqTransport final : public MachineTransport {
 public:
  explicit ZmqTransport(const Clock& clock) : clock_(clock) {}

  Result<std::unique_ptr<MachineServer>> serve(ServeOptions options, ServerHandlers handlers) override {
    try {
      return zmq_link::ZmqServer::start(std::move(options), std::move(handlers), clock_);
    } catch (const zmq::error_t& error) {
      return out_of_resources(error);
    }
  }
  Result<std::unique_ptr<MachineClient>> connect(ConnectOptions options, ClientHandlers handlers) override {
    try {
      return zmq_link::ZmqClient::start(std::move(options), std::move(handlers), clock_);
    } catch (const zmq::error_t& error) {
      return out_of_resources(error);
    }
  }

 private:
  static ErrorInfo out_of_resources(const zmq::error_t& error) {
    return {ErrorCode::kIo, "cannot create a ZeroMQ socket", error.what(), "raise ulimit -n"};
  }

  const Clock& clock_;
};

}  // namespace

std::unique_ptr<MachineTransport> make_zmq_transport(const Clock& clock) {
  return std::make_unique<ZmqTransport>(clock);
}

}  // namespace troupe
