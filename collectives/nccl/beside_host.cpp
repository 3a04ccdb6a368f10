#include "collectives/nccl/beside_host.hpp"

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {
namespace {

/// What every rank says, by rank, on every rank.
std::vector<std::string> said_by_all(ProcessGroup& group, const std::string& mine) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(group.size()));
  group.all_gather(std::vector<std::size_t>{mine.size()}, sizes)->wait();
  std::size_t all = 0;
  for (const std::size_t size : sizes) all += size;
  std::vector<char> own(mine.begin(), mine.end()), text(all);
  group.all_gather(own, text, sizes)->wait();
  std::vector<std::string> said;
  auto at = text.begin();
  for (const std::size_t size : sizes) {
    said.emplace_back(at, at + static_cast<std::ptrdiff_t>(size));
    at += static_cast<std::ptrdiff_t>(size);
  }
  return said;
}

/// What is told to one group is told to the other.
class SharedAbort final : public AbortBoard {
 public:
  explicit SharedAbort(std::shared_ptr<ProcessGroup> host) : host_(std::move(host)) {}
  void post(AbortKind kind, const std::string& reason) override {
    {
      const std::lock_guard lock(mutex_);
      if (!mine_) mine_ = {kind, reason};
    }
    host_->abort(reason);
  }
  std::optional<AbortReason> read() override {
    std::string reason = host_->abort_reason();
    if (reason.empty()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    // The host's group may have cut the reason short, and keeps no kind.
    const bool mine = mine_ && mine_->text.starts_with(reason);
    return AbortReason{mine ? mine_->kind : AbortKind::kRequested, std::move(reason)};
  }

 private:
  const std::shared_ptr<ProcessGroup> host_;
  std::mutex mutex_;
  std::optional<AbortReason> mine_;  ///< the first that this rank posted
};

}  // namespace

void use_host(NcclGroupOptions& options) {
  const std::shared_ptr<ProcessGroup> host = options.host;
  if (!host) return;
  const bool fits = host->facts().device.kind == DeviceKind::kCpu && host->rank() == options.rank &&
                    host->size() == options.size;
  if (!fits || options.board) {
    throw BadConfig("cannot make a process group of the backend nccl",
                    fits ? "options.host carries the aborts, and there is a board for them"
                         : "options.host is not a group of the same ranks for the host's memory",
                    "give the group of these ranks, and no board");
  }
  if (!options.exchange) {
    options.exchange = [host](const std::string& mine, const NcclGroupOptions::Answer& answer) {
      const auto said = said_by_all(*host, mine);
      return said_by_all(*host, host->rank() == 0 ? answer(said) : "").front();
    };
  }
  options.board = std::make_shared<SharedAbort>(host);
}

}  // namespace troupe::collectives::nccl
