/// The shell around a ProxyMachine: calls replicas, and keeps the tensors of requests meanwhile.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/serve/batch_sender.hpp"
#include "actors/serve/proxy.hpp"
#include "actors/serve/proxy_machine.hpp"
#include "actors/serve/request_book.hpp"
#include "actors/serve/serial.hpp"
#include "runtime/client/session.hpp"

namespace troupe::serve {

/// Thread-safe. Held by shared_ptr: calls under way hold it, too.
class ProxyFront final : public Front, public std::enable_shared_from_this<ProxyFront> {
 public:
  ProxyFront(const Session& session, const ProxyTold& first, http::Registry& metrics);

  /// Keeps to what it is told, and sets the report then.
  void hear(const ProxyTold& told, const Promise<ProxyReport>& report);

  const std::string& name() const override { return name_; }
  const ReplicaSetup& setup() const override { return setup_; }
  std::size_t max_request_rows() const override { return max_request_rows_; }
  bool is_ready() const override;
  VersionId version() const override;
  std::optional<ReplicaInfo> output() const override;
  void measure() override {}
  RequestId next_request() override { return last_request_.fetch_add(1) + 1; }
  void submit(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) override;
  void leave(RequestId id) override;

 private:
  BatchSender::Owner sender_of();
  void post(std::function<void()> work);
  void carry_out(const std::vector<Action>& actions);
  void arm_timer();
  void keep_to_routes();
  void lost(ReplicaId id, const ErrorInfo& why);

  const Session session_;
  const std::string name_;
  const ReplicaSetup setup_;
  const std::size_t max_request_rows_;
  const MonotonicClock clock_;
  std::atomic<RequestId> last_request_{0};
  Serial serial_;

  // In serial_ alone.
  ProxyMachine machine_;
  RequestBook book_;
  Routes routes_;
  BatchSender sender_;
  Instant armed_ = Instant::max();

  mutable std::mutex mutex_;  ///< guards what follows
  bool ready_ = false;
  VersionId version_ = 0;
  std::optional<ReplicaInfo> output_;
};

}  // namespace troupe::serve
