#include "actors/train/trainer/checkpoint_transfer.hpp"

#include <algorithm>
#include <memory>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

constexpr std::int64_t kReads = -1;

collectives::Buffer buffer_over(std::span<const std::byte> bytes) {
  collectives::Buffer buffer;
  buffer.data = const_cast<std::byte*>(bytes.data());
  buffer.count = bytes.size();
  buffer.dtype = collectives::DType::kUInt8;
  return buffer;
}

[[noreturn]] void not_as_sent(const std::string& why) {
  throw_error({ErrorCode::kCorrupt, "a checkpoint that arrives is not what was sent", why, ""});
}

}  // namespace

void CheckpointSender::to_all(std::span<const std::byte> bytes) {
  broken_ = true;
  std::vector<std::shared_ptr<collectives::Work>> sends;
  for (const int receiver : receivers_) sends.push_back(group_.send(buffer_over(bytes), receiver));
  for (const auto& one : sends) one->wait();
  broken_ = false;
}

void CheckpointSender::still_reads() {
  if (is_on() && places_.empty()) to_all(kReads);
}

void CheckpointSender::begin(const std::vector<StatePart>& parts) {
  if (!is_on()) return;
  const auto layout = checkpoint::lay_out_safetensors(parts).value();
  for (const StatePart& part : layout.order) places_.push_back(part.name);
  to_all(static_cast<std::int64_t>(layout.prefix.size()));
  to_all(static_cast<std::int64_t>(layout.total_bytes));
  to_all(std::as_bytes(std::span(layout.prefix)));
}

void CheckpointSender::send(const StatePart& part, std::span<const std::byte> bytes) {
  if (!is_on()) return;
  to_all(std::find(places_.begin(), places_.end(), part.name) - places_.begin());
  checkpoint::Xxh3 hash;
  in_pieces(bytes, {}, [&](auto piece) {
    to_all(piece);
    hash.update(piece);
  });
  const checkpoint::Digest128 digest = hash.digest();
  to_all(std::as_bytes(std::span(&digest, 1)));
}

void install_checkpoint(TrainEngine& engine, checkpoint::CheckpointStore store, const std::string& path,
                        const StateHash& hash, CheckpointSender& sender) {
  auto opened = store.open_manifest(path).value();
  if (const auto& manifest = opened.manifest(); manifest.state_hash != hash) {
    throw_error({ErrorCode::kCorrupt, "the checkpoint '" + path + "' is another one here",
                 "its state is " + manifest.state_hash + ", the job's is " + hash,
                 "share the checkpoint folder between the nodes, or empty it there"});
  }
  sender.begin(opened.tensors());
  engine.install(opened.tensors(), [&](const StatePart& part) {
    const auto bytes = opened.bytes_of(part).value();
    sender.send(part, bytes);
    return bytes;
  });
}

void receive_checkpoint(TrainEngine& engine, collectives::ProcessGroup& group, int source,
                        const WalkProgress& progress) {
  const auto receive = [&](std::span<const std::byte> into) {
    group.recv(buffer_over(into), source)->wait();
    progress();
  };
  const auto receive_word = [&] {
    std::int64_t word = 0;
    receive(std::as_bytes(std::span(&word, 1)));
    return word;
  };
  std::int64_t prefix_bytes = kReads;
  while (prefix_bytes == kReads) prefix_bytes = receive_word();
  const std::int64_t total = receive_word();
  if (prefix_bytes < 0 || total < prefix_bytes) not_as_sent("its sizes make no sense");
  std::vector<std::byte> prefix(static_cast<std::size_t>(prefix_bytes));
  receive(prefix);
  const auto header = checkpoint::read_safetensors_header("a checkpoint that arrives", prefix,
                                                          static_cast<std::uint64_t>(total))
                          .value();
  std::unique_ptr<std::byte[]> memory;
  engine.install(header.tensors, [&](const StatePart& part) -> std::span<const std::byte> {
    const auto place = static_cast<std::size_t>(receive_word());
    if (place >= header.tensors.size() || header.tensors[place].name != part.name)
      not_as_sent("'" + part.name + "' is not the part that was sent");
    memory.reset();  // of the part before
    memory = std::make_unique_for_overwrite<std::byte[]>(part.bytes.size());
    const std::span<const std::byte> into(memory.get(), part.bytes.size());
    checkpoint::Xxh3 hash;
    in_pieces(into, {}, [&](auto piece) {
      receive(piece);
      hash.update(piece);
    });
    checkpoint::Digest128 digest;
    receive(std::as_bytes(std::span(&digest, 1)));
    if (hash.digest() != digest) not_as_sent("the hash of '" + part.name + "' does not hold");
    return into;
  });
}

}  // namespace troupe::train
