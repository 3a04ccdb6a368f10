/// How groups come about: from scratch, and from the group before.

#include <algorithm>
#include <sstream>

#include "collectives/nccl/group.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {
namespace nccl {
namespace {

[[noreturn]] void refuse_options(std::string why, std::string todo) {
  throw BadConfig("cannot make a process group of the backend nccl", std::move(why), std::move(todo));
}

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

/// Aborts go over the host's group, and the exchange where the options have none.
void use_host(NcclGroupOptions& options) {
  const std::shared_ptr<ProcessGroup> host = options.host;
  const bool fits = host && host->facts().device.kind == DeviceKind::kCpu && host->rank() == options.rank &&
                    host->size() == options.size;
  if (!fits) {
    refuse_options("options.host is not a group of the same ranks for the host's memory",
                   "give a native group of these ranks");
  }
  if (options.exchange) return;
  options.exchange = [host](const std::string& mine, const NcclGroupOptions::Answer& answer) {
    const auto said = said_by_all(*host, mine);
    return said_by_all(*host, host->rank() == 0 ? answer(said) : "").front();
  };
}

void check_options(NcclGroupOptions& options) {
  options.leaves = checked_leaves("nccl", options.rank, options.size, std::move(options.leaves));
  if (options.timeout <= Duration::zero()) refuse_options("the timeout is not positive", "give nanoseconds");
  if (options.hosts.empty()) options.hosts.assign(options.leaves.size(), 0);
  if (options.hosts.size() != options.leaves.size()) {
    refuse_options("hosts are given for " + std::to_string(options.hosts.size()) + " of " +
                       std::to_string(options.size) + " ranks",
                   "give every rank's, or none");
  }
  if (options.exact_piece_bytes == 0) refuse_options("exact_piece_bytes is 0", "leave its default");
  if (options.device < 0) refuse_options("the device is negative", "give CUDA's index of the GPU");
  use_host(options);
}

constexpr std::string_view kMagic = "troupe-nccl-3";
constexpr std::string_view kFromScratch = "none";

/// "troupe-nccl-3 VERSION PARENT [ID...]": what a rank says without ids, and rank 0 answers. VERSION is that
/// of NCCL. PARENT is the generation whose communicators the sender can shrink; where it is "none", rank 0's
/// answer has an id for each new communicator, in hexadecimal.
std::string sentence(int version, std::string_view parent, const std::vector<UniqueId>& ids = {}) {
  std::string text = std::string(kMagic) + " " + std::to_string(version) + " " + std::string(parent);
  for (const UniqueId& id : ids) text += " " + to_hex(std::as_bytes(std::span(id.bytes)));
  return text;
}

/// Rank 0's NCCL and ids, `count` of them.
struct Invitation {
  int version = 0;
  std::vector<UniqueId> ids;
};
Result<Invitation> decode(const std::string& text, std::size_t count) {
  const ErrorInfo bad{ErrorCode::kBadInput, "what rank 0 says of an nccl group does not decode",
                      "it is another program's or version's, or it was cut",
                      "give the exchange keys of this group and generation alone"};
  std::istringstream words(text);
  std::string magic, parent, hex;
  Invitation invitation;
  words >> magic >> invitation.version >> parent;
  if (!words || magic != kMagic || parent != kFromScratch) return bad;
  while (words >> hex) {
    if (!from_hex(hex, std::as_writable_bytes(std::span(invitation.ids.emplace_back().bytes)))) return bad;
  }
  if (invitation.ids.size() != count) return bad;
  return invitation;
}

/// Makes one group; the parent is null for one from scratch.
class Maker {
 public:
  Maker(NcclGroupOptions options, const Api& api, NcclGroup* parent, std::vector<int> gone)
      : options_(std::move(options)),
        api_(api),
        parent_(parent),
        gone_(std::move(gone)),
        caller_{&api, options_.rank},
        core_(std::make_shared<Core>(Core::Facts{.caller = caller_,
                                                 .device = options_.device,
                                                 .name = options_.name,
                                                 .generation = options_.generation,
                                                 .timeout = options_.timeout,
                                                 .host = options_.host})) {}

  std::unique_ptr<ProcessGroup> make() {
    try {
      const OnDevice on(caller_, options_.device);
      if (options_.share_gpu) api_.nccl.allow_shared_gpu(options_.rank);
      core_->start();
      join(agree());
      options_.exchange = nullptr;  // what these hold is the caller's
      options_.is_vain = nullptr;
      return std::make_unique<NcclGroup>(std::move(options_), core_, made_);
    } catch (const Error& e) {
      const auto kind = e.code() == ErrorCode::kTimeout ? AbortKind::kTimeout : AbortKind::kPeerLost;
      core_->fail(kind, e.info().what + ": " + e.info().why);
      core_->leave();
      throw;
    } catch (const std::exception& e) {  // of the caller's exchange
      core_->fail(AbortKind::kPeerLost, e.what());
      core_->leave();
      throw;
    }
  }

 private:
  std::size_t communicators() const { return options_.messages ? kCommunicators : 1; }

  bool can_shrink() {
    if (parent_ == nullptr || parent_->communicators().size() < communicators()) return false;
    return std::all_of(parent_->communicators().begin(), parent_->communicators().end(),
                       [](const auto& communicator) { return communicator->can_shrink(); });
  }

  void check() {
    core_->check();
    if (options_.is_vain && options_.is_vain()) {
      throw_error({ErrorCode::kAborted, "cannot make " + group_called(options_.name), "a rank is gone",
                   "make the next generation without it"});
    }
  }

  std::vector<UniqueId> new_ids() {
    std::vector<UniqueId> ids(communicators());
    for (UniqueId& id : ids) NCCL_TRY(caller_, api_.nccl.ncclGetUniqueId(&id));
    return ids;
  }

  /// The ids to start from scratch with; none: all shrink, as every rank can. An error that stays in the
  /// communicator of one of them, as after a peer's death, makes all start from scratch.
  std::vector<UniqueId> agree() {
    const bool shrinks = can_shrink();
    const int version = api_.nccl.version;
    const std::string mine = sentence(version, shrinks ? to_string(parent_->generation()) : kFromScratch);
    if (options_.size == 1) return shrinks ? std::vector<UniqueId>() : new_ids();
    const std::string heard = options_.exchange(mine, [&](const std::vector<std::string>& said) {
      const bool all = shrinks && std::all_of(said.begin(), said.end(),
                                              [&](const std::string& theirs) { return theirs == mine; });
      return all ? mine : sentence(version, kFromScratch, new_ids());
    });
    check();
    if (shrinks && heard == mine) return {};
    Invitation invitation = decode(heard, communicators()).value();
    if (invitation.version != version) {
      throw_error({ErrorCode::kRefused, "ranks have different versions of NCCL",
                   "rank 0 has " + version_text(invitation.version) + ", rank " +
                       std::to_string(options_.rank) + " " + version_text(version),
                   "install the same on every machine"});
    }
    return std::move(invitation.ids);
  }

  void join(const std::vector<UniqueId>& ids) {
    const Patient patient{options_.timeout, [this] { check(); }};
    for (std::size_t i = 0; i < communicators(); ++i) {
      const auto made = std::make_shared<Communicator>(caller_);
      core_->adopt(made);
      made_.push_back(made);
      if (ids.empty()) {
        made->shrink_from(patient, *parent_->communicators()[i], gone_);
      } else {
        made->init(patient, options_.size, options_.rank, ids[i]);
      }
    }
  }

  NcclGroupOptions options_;
  const Api& api_;
  NcclGroup* parent_;
  std::vector<int> gone_;
  Caller caller_;
  std::shared_ptr<Core> core_;
  Communicators made_;
};

/// Checks that this survivor of `old` is where NCCL puts it in the new group.
void check_succession(const NcclGroup& old, const std::vector<int>& gone, const NcclGroupOptions& next) {
  const bool ascending = std::adjacent_find(gone.begin(), gone.end(), std::greater_equal<>()) == gone.end();
  if (gone.empty() || !ascending || gone.front() < 0 || gone.back() >= old.size() ||
      std::binary_search(gone.begin(), gone.end(), old.rank())) {
    refuse_options("`gone` is not a list of other ranks of the old group, ascending", "name whom it lost");
  }
  const auto lost = static_cast<int>(gone.size());
  const auto below = static_cast<int>(std::lower_bound(gone.begin(), gone.end(), old.rank()) - gone.begin());
  if (next.rank != old.rank() - below || next.size != old.size() - lost) {
    refuse_options("rank " + std::to_string(old.rank()) + " of " + std::to_string(old.size()) + " without " +
                       std::to_string(lost) + " does not become rank " + std::to_string(next.rank) + " of " +
                       std::to_string(next.size),
                   "survivors move up in order; with new ranks make a new group");
  }
  if (next.generation <= old.generation()) {
    refuse_options(
        "generation " + to_string(next.generation) + " does not come after " + to_string(old.generation()),
        "count it up");
  }
  if (next.device != old.facts().device.index) {
    refuse_options("the device changes", "make a new group to move to another GPU");
  }
}

}  // namespace
}  // namespace nccl

std::unique_ptr<ProcessGroup> make_nccl_group(NcclGroupOptions options, const nccl::Api& api) {
  nccl::check_options(options);
  return nccl::Maker(std::move(options), api, nullptr, {}).make();
}

std::unique_ptr<ProcessGroup> make_nccl_group(NcclGroupOptions options) {
  return make_nccl_group(std::move(options), nccl::real_api());
}

std::unique_ptr<ProcessGroup> succeed_nccl_group(ProcessGroup& old, const std::vector<int>& gone,
                                                 NcclGroupOptions options) {
  auto* parent = dynamic_cast<nccl::NcclGroup*>(&old);
  if (parent == nullptr) {
    nccl::refuse_options("the old group is of the backend " + std::string(old.backend()),
                         "start from a group of this backend");
  }
  nccl::check_options(options);
  nccl::check_succession(*parent, gone, options);
  parent->abort("generation " + to_string(options.generation) + " comes after it");
  parent->core().await_stopped();
  auto next = nccl::Maker(std::move(options), parent->core().api(), parent, gone).make();
  // A group is shrunk once: if the next one fails on another rank, all start the one after from scratch.
  nccl::abort_all(parent->communicators());
  return next;
}

}  // namespace troupe::collectives
