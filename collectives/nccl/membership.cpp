/// How groups come about: from scratch, and from the group before.

#include <algorithm>
#include <charconv>

#include "collectives/nccl/beside_host.hpp"
#include "collectives/nccl/group.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {
namespace nccl {
namespace {

[[noreturn]] void refuse_options(std::string why, std::string todo) {
  throw BadConfig("cannot make a process group of the backend nccl", std::move(why), std::move(todo));
}

void check_options(NcclGroupOptions& options) {
  use_host(options);
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
  if (!options.exchange && options.size > 1) {
    refuse_options("nothing carries what the ranks have to say to each other", "set options.exchange");
  }
  if (!options.board) options.board = make_word_board(nullptr, options.generation);
}

/// How communicators come about.
enum class How { kInit = 0, kShrink = 1, kGrow = 2 };

/// How the ranks of a new group find each other: what each tells rank 0 that it can do, without ids; and rank
/// 0's message to all.
struct Invitation {
  How how = How::kInit;
  int version = 0;            ///< of the sender's NCCL
  std::vector<UniqueId> ids;  ///< one a communicator; none to shrink
};

constexpr std::string_view kMagic = "troupe-nccl-2";

/// "troupe-nccl-1 HOW VERSION [ID...]", in decimal and hexadecimal.
std::string encode(const Invitation& invitation) {
  std::string text(kMagic);
  text += " " + std::to_string(static_cast<int>(invitation.how)) + " " + std::to_string(invitation.version);
  for (const UniqueId& id : invitation.ids) text += " " + to_hex(std::as_bytes(std::span(id.bytes)));
  return text;
}

bool parse_number(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

/// Of a message of rank `from` with so many ids; none to shrink.
Result<Invitation> decode(std::string_view text, int from, std::size_t ids) {
  const ErrorInfo bad{ErrorCode::kBadInput,
                      "what rank " + std::to_string(from) + " says of an nccl group does not decode",
                      "it is another program's or version's, or it was cut",
                      "give the exchange keys of this group and generation alone"};
  std::vector<std::string_view> words;
  for (std::size_t at = 0; words.size() < 3 + ids + 1;) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    if (end == text.size()) break;
    at = end + 1;
  }
  Invitation invitation;
  int how = 0;
  if (words.size() < 3 || words[0] != kMagic || !parse_number(words[1], how) || how < 0 || how > 2 ||
      !parse_number(words[2], invitation.version)) {
    return bad;
  }
  invitation.how = static_cast<How>(how);
  if (invitation.how == How::kShrink) ids = 0;
  if (words.size() != 3 + ids) return bad;
  for (std::size_t i = 0; i < ids; ++i) {
    const auto id = std::as_writable_bytes(std::span(invitation.ids.emplace_back().bytes));
    if (!from_hex(words[3 + i], id)) return bad;
  }
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
                                                 .size = options_.size,
                                                 .device = options_.device,
                                                 .name = options_.name,
                                                 .generation = options_.generation,
                                                 .timeout = options_.timeout,
                                                 .board = options_.board})) {}

  std::unique_ptr<ProcessGroup> make() {
    try {
      const OnDevice on(caller_, options_.device);
      if (options_.share_gpu) api_.nccl.allow_shared_gpu(options_.rank);
      core_->start();
      const Invitation invitation = exchange();
      for (std::size_t i = 0; i < communicators(); ++i) join(invitation, i);
      auto group = std::make_unique<NcclGroup>(options_, core_, made_);
      if (parent_ != nullptr) {
        parent_->core().retire("generation " + to_string(options_.generation) + " came after it");
      }
      return group;
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

  Communicator* parent_communicator(std::size_t index) {
    return parent_ == nullptr ? nullptr : parent_->communicator(index);
  }

  /// How this rank could come to the new group without starting from scratch; kInit: it could not.
  How best_way() {
    const bool grows = api_.nccl.ncclCommGrow && api_.nccl.ncclCommGetUniqueId;
    if (parent_ == nullptr) return grows && options_.rank != 0 ? How::kGrow : How::kInit;
    if (gone_.empty() && options_.size == parent_->size()) return How::kInit;
    for (std::size_t i = 0; i < communicators(); ++i) {
      Communicator* parent = parent_communicator(i);
      if (parent == nullptr || !parent->async_error().empty()) return How::kInit;
      if (gone_.empty() ? !parent->healthy() : !parent->can_shrink()) return How::kInit;
    }
    if (!gone_.empty()) return How::kShrink;
    return grows ? How::kGrow : How::kInit;
  }

  /// Rank 0's way, if all others can go it: an error that stays in the communicator of one of them, as after
  /// a peer's death, makes all start from scratch.
  How common_way(const std::vector<std::string>& said) {
    const How mine = decode(said.at(0), 0, 0).value().how;
    for (int r = 1; r < options_.size; ++r) {
      if (decode(said.at(static_cast<std::size_t>(r)), r, 0).value().how != mine) return How::kInit;
    }
    return mine;
  }

  Invitation invite(How how) {
    Invitation invitation{.how = how, .version = api_.nccl.version, .ids = {}};
    for (std::size_t i = 0; i < communicators() && invitation.how != How::kShrink; ++i) {
      if (invitation.how == How::kGrow) {
        invitation.ids.push_back(parent_communicator(i)->unique_id_to_grow());
      } else {
        NCCL_TRY(caller_, api_.nccl.ncclGetUniqueId(&invitation.ids.emplace_back()));
      }
    }
    return invitation;
  }

  Invitation exchange() {
    const How way = best_way();
    if (options_.size == 1) return invite(way);
    const std::string heard = options_.exchange(
        encode({.how = way, .version = api_.nccl.version}),
        [&](const std::vector<std::string>& said) { return encode(invite(common_way(said))); });
    core_->check();
    Invitation invitation = decode(heard, 0, communicators()).value();
    if (invitation.version != api_.nccl.version) {
      throw_error({ErrorCode::kRefused, "ranks have different versions of NCCL",
                   "rank 0 has " + version_text(invitation.version) + ", rank " +
                       std::to_string(options_.rank) + " " + version_text(api_.nccl.version),
                   "install the same on every machine"});
    }
    if (invitation.how != How::kInit && invitation.how != way) {
      throw_error({ErrorCode::kBadInput, "rank 0's invitation asks for what this rank cannot do",
                   "the ranks run different builds", "give every rank the same"});
    }
    return invitation;
  }

  void join(const Invitation& invitation, std::size_t index) {
    auto made = std::make_shared<Communicator>(caller_, core_->patient());
    core_->adopt(made);
    made_.push_back(made);
    Communicator* parent = parent_communicator(index);
    switch (invitation.how) {
      case How::kInit:
        return made->init(options_.size, options_.rank, invitation.ids[index]);
      case How::kShrink:
        return made->shrink_from(*parent, gone_);
      case How::kGrow:
        if (parent == nullptr) return made->join_grown(options_.size, options_.rank, invitation.ids[index]);
        return made->grow_from(*parent, options_.size, options_.rank == 0 ? &invitation.ids[index] : nullptr);
    }
  }

  NcclGroupOptions options_;
  const Api& api_;
  NcclGroup* parent_;
  std::vector<int> gone_;
  Caller caller_;
  std::shared_ptr<Core> core_;
  std::vector<std::shared_ptr<Communicator>> made_;
};

/// Checks that the survivors of `old` are where NCCL puts them in the new group.
void check_succession(const NcclGroup& old, const std::vector<int>& gone, const NcclGroupOptions& next) {
  const bool ascending = std::adjacent_find(gone.begin(), gone.end(), std::greater_equal<>()) == gone.end();
  if (!ascending || (!gone.empty() && (gone.front() < 0 || gone.back() >= old.size())) ||
      std::binary_search(gone.begin(), gone.end(), old.rank())) {
    refuse_options("`gone` is not a list of other ranks of the old group, ascending", "name whom it lost");
  }
  const auto lost = static_cast<int>(gone.size());
  const auto below = static_cast<int>(std::lower_bound(gone.begin(), gone.end(), old.rank()) - gone.begin());
  if (next.rank != old.rank() - below || (lost > 0 && next.size != old.size() - lost) ||
      next.size < old.size() - lost) {
    refuse_options("rank " + std::to_string(old.rank()) + " of " + std::to_string(old.size()) + " without " +
                       std::to_string(lost) + " does not become rank " + std::to_string(next.rank) + " of " +
                       std::to_string(next.size),
                   "survivors move up in order; to lose and to add ranks are two generations");
  }
  if (next.generation <= old.generation()) {
    refuse_options(
        "generation " + to_string(next.generation) + " does not come after " + to_string(old.generation()),
        "count it up");
  }
  if (next.device != old.options().device) {
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
  if (!parent->core().failed()) {
    try {
      parent->drain();
    } catch (const Error&) {  // it has failed meanwhile, which is no reason not to succeed it
    }
  }
  parent->core().await_stopped();
  parent->core().suspend(true);
  try {
    return nccl::Maker(std::move(options), parent->core().api(), parent, gone).make();
  } catch (...) {
    parent->core().suspend(false);
    throw;
  }
}

}  // namespace troupe::collectives
