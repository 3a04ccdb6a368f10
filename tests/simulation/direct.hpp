/// Direct connections of a simulated process: an object goes past the nodes in pieces, until it is there or
/// the connection breaks.
#pragma once

#include <memory>
#include <vector>

#include "runtime/objects/direct_connections.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Hosted;

class SimDirect final : public objects::DirectConnections {
 public:
  explicit SimDirect(Hosted& self);
  ~SimDirect() override;
  objects::DirectAddress address(const std::string& host, const Find& find) override;
  bool fetch(Wanted wanted, Then then) override;
  void abort(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason) override;

 private:
  struct Transfer;
  using TransferPtr = std::shared_ptr<Transfer>;
  // At the owner.
  void asked(const TransferPtr& transfer);
  void give(const TransferPtr& transfer);
  // At the reader.
  void take(const TransferPtr& transfer, std::size_t bytes);
  void look(const TransferPtr& transfer);
  /// It hears of it after a while.
  void breaks(const TransferPtr& transfer, const std::string& why);
  void end(const TransferPtr& transfer, const Result<void>& result);

  Hosted& self_;
  Find find_;
  std::vector<TransferPtr> coming_;
  std::vector<TransferPtr> going_;
};

}  // namespace troupe::sim
