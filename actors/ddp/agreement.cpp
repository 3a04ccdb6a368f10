#include "actors/ddp/agreement.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/device_streams.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

constexpr std::size_t kPiece_bytes = std::size_t{4} << 20;
constexpr std::size_t kMaxText_bytes = std::size_t{64} << 20;

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

/// A line a fact: name, tab, value.
std::string text_of(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) text += fact.name + '\t' + fact.value + '\n';
  return text;
}

std::vector<Fact> facts_of(const std::string& text) {
  std::vector<Fact> facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    facts.push_back({line.substr(0, tab), line.substr(std::min(tab + 1, line.size()))});
  }
  return facts;
}

[[noreturn]] void refuse(const std::vector<Fact>& mine, const std::vector<Fact>& theirs, int rank) {
  const std::string other = "rank " + std::to_string(rank);
  const char* todo = "wrap the same module with the same options on every rank";
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i].name != theirs[i].name) {
      throw BadConfig("the ranks' modules differ",
                      "where rank 0 has " + mine[i].name + ", " + other + " has " + theirs[i].name, todo);
    }
    if (mine[i].value != theirs[i].value) {
      throw BadConfig("the ranks' modules differ in " + mine[i].name,
                      "it is " + mine[i].value + " on rank 0 and " + theirs[i].value + " on " + other, todo);
    }
  }
  const bool more = mine.size() > theirs.size();
  const auto& longer = more ? mine : theirs;
  const Fact& extra = longer[std::min(longer.size() - 1, std::min(mine.size(), theirs.size()))];
  throw BadConfig("the ranks' modules differ",
                  "only " + (more ? std::string("rank 0") : other) + " has " + extra.name, todo);
}

void broadcast_pieces(collectives::ProcessGroup& group, const std::vector<torch::Tensor>& tensors, int root) {
  const bool is_root = group.rank() == root;
  // By dtype, coalesced; a tensor with gaps is copied through a dense one.
  std::map<torch::ScalarType, std::vector<torch::Tensor>> by_type;
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.numel() != 0) by_type[tensor.scalar_type()].push_back(tensor);
  }
  for (auto& [type, of_type] : by_type) {
    for (std::size_t begin = 0; begin < of_type.size();) {
      std::size_t end = begin;
      std::size_t bytes = 0;
      while (end < of_type.size() && (end == begin || bytes + of_type[end].nbytes() <= kPiece_bytes))
        bytes += of_type[end++].nbytes();
      std::vector<torch::Tensor> flat;
      for (std::size_t i = begin; i < end; ++i) flat.push_back(of_type[i].detach().reshape({-1}));
      const torch::Tensor piece = torch::cat(flat);
      broadcast_tensor(group, piece.view(torch::kUInt8), root);
      std::int64_t at = 0;
      for (std::size_t i = begin; i < end && !is_root; ++i) {
        of_type[i].detach().copy_(piece.narrow(0, at, of_type[i].numel()).view(of_type[i].sizes()));
        at += of_type[i].numel();
      }
      begin = end;
    }
  }
}

}  // namespace

Fact fact_of(const char* kind, const NamedTensor& tensor) {
  std::ostringstream value;
  value << torch::toString(tensor.tensor.scalar_type()) << " " << tensor.tensor.sizes();
  if (!tensor.tensor.is_contiguous()) value << " with strides " << tensor.tensor.strides();
  if (std::strcmp(kind, "parameter") == 0 && !tensor.tensor.requires_grad()) value << " without a gradient";
  return {std::string(kind) + " " + tensor.name, value.str()};
}

std::string broadcast_text(collectives::ProcessGroup& group, std::string text, int root) {
  auto size = static_cast<std::uint64_t>(text.size());
  group.broadcast(std::span(&size, 1), root)->wait();
  if (size > kMaxText_bytes) {
    throw LimitExceeded({ErrorCode::kLimit,
                         "cannot broadcast a text of " + std::to_string(size) + " bytes",
                         std::to_string(kMaxText_bytes) + " are the most",
                         "broadcast it in parts",
                         {},
                         {}});
  }
  text.resize(size);
  const std::span bytes(reinterpret_cast<std::uint8_t*>(text.data()), text.size());
  group.broadcast(bytes, root)->wait();
  return text;
}

void check_agreement(collectives::ProcessGroup& group, const std::vector<Fact>& facts) {
  const std::string mine = text_of(facts);
  const std::uint64_t hash = hash_of(mine);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(std::span(&hash, 1), all)->wait();
  const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t h) { return h != all.front(); });
  if (other == all.end()) return;
  const int rank = static_cast<int>(other - all.begin());
  const std::vector<Fact> first = facts_of(broadcast_text(group, mine, 0));
  refuse(first, facts_of(broadcast_text(group, mine, rank)), rank);
}

void broadcast_tensors(collectives::ProcessGroup& group, const std::vector<torch::Tensor>& tensors,
                       int root) {
  if (group.size() == 1) return;
  const torch::NoGradGuard no_grad;
  const DeviceStreams streams(device_of(group));
  streams.on_default([&] { broadcast_pieces(group, tensors, root); });
  streams.synchronize();  // a wait for a group of GPUs is the stream's, which does not throw
  group.throw_if_aborted();
}

}  // namespace troupe::train
