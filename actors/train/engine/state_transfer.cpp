#include "actors/train/engine/state_transfer.hpp"

#include <array>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

using checkpoint::Digest128;
using collectives::Buffer;
using collectives::DType;

/// REQUIRES: what is sent is not written to.
Buffer buffer_of(std::span<const std::byte> bytes) {
  Buffer buffer;
  buffer.data = const_cast<std::byte*>(bytes.data());
  buffer.count = bytes.size();
  buffer.dtype = DType::kUInt8;
  return buffer;
}

[[noreturn]] void damaged(const std::string& why) {
  throw_error({ErrorCode::kCorrupt, "a TrainState that arrived is not what was sent", why, ""});
}

}  // namespace

void send_state(collectives::ProcessGroup& group, std::span<const StatePart> parts,
                const std::vector<int>& receivers, const WalkProgress& progress) {
  const auto layout = checkpoint::lay_out_safetensors(parts).value();
  const auto send = [&](std::span<const std::byte> bytes, auto&& meanwhile) {
    std::vector<std::shared_ptr<collectives::Work>> sends;
    for (const int receiver : receivers) sends.push_back(group.send(buffer_of(bytes), receiver));
    meanwhile();
    for (const auto& one : sends) one->wait();
  };
  const auto send_all = [&](std::span<const std::byte> bytes) { send(bytes, [] {}); };
  const std::array<std::int64_t, 2> sizes{static_cast<std::int64_t>(layout.prefix.size()),
                                          static_cast<std::int64_t>(layout.total_bytes)};
  send_all(std::as_bytes(std::span(sizes)));
  send_all(std::as_bytes(std::span(layout.prefix)));
  checkpoint::Xxh3 hash;
  std::vector<Digest128> digests;
  for (const StatePart& part : layout.order) {
    hash.reset();
    in_pieces(part.bytes, progress, [&](auto piece) { send(piece, [&] { hash.update(piece); }); });
    digests.push_back(hash.digest());
  }
  if (!digests.empty()) send_all(std::as_bytes(std::span(digests)));
}

ReceivedState receive_state(collectives::ProcessGroup& group, int source, const WalkProgress& progress) {
  const auto receive = [&](std::span<const std::byte> into) { group.recv(buffer_of(into), source)->wait(); };
  std::array<std::int64_t, 2> sizes{};
  receive(std::as_bytes(std::span(sizes)));
  const auto [prefix_bytes, total_bytes] = sizes;
  if (prefix_bytes < 0 || total_bytes < prefix_bytes) damaged("its sizes make no sense");
  ReceivedState state;
  // Not zeroed: every byte is written, and a state is large.
  state.memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(total_bytes));
  const std::span<std::byte> bytes(state.memory.get(), static_cast<std::size_t>(total_bytes));
  receive(bytes.first(static_cast<std::size_t>(prefix_bytes)));
  auto layout = checkpoint::read_safetensors("a TrainState that arrives", bytes).value();
  state.parts = std::move(layout.tensors);
  checkpoint::Xxh3 hash;
  std::vector<Digest128> computed;
  for (const StatePart& part : state.parts) {
    hash.reset();
    in_pieces(part.bytes, progress, [&](auto piece) {
      receive(piece);
      hash.update(piece);
    });
    computed.push_back(hash.digest());
  }
  std::vector<Digest128> sent(computed.size());
  if (!sent.empty()) receive(std::as_bytes(std::span(sent)));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (computed[i] != sent[i]) damaged("the hash of '" + state.parts[i].name + "' does not hold");
  }
  return state;
}

}  // namespace troupe::train
