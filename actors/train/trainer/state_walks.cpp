#include "actors/train/trainer/state_walks.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "actors/train/engine/held_shards.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

/// Which parts a save asks for, in order: all for the hash, then as the file has them.
std::vector<std::size_t> order_of_save(const std::vector<StatePart>& parts) {
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto layout = checkpoint::lay_out_safetensors(parts);
  if (!layout) return order;  // then none is written
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < parts.size(); ++i) places.emplace(parts[i].name, i);
  for (const StatePart& part : layout->order) order.push_back(places.at(part.name));
  return order;
}

}  // namespace

CopyWalk::CopyWalk(StateCopy& copy) : copy_(copy), offsets_(offsets_in_file(copy.parts())) {}

std::span<const std::byte> CopyWalk::bytes(std::size_t part) {
  memory_.resize(std::max(memory_.size(), parts()[part].bytes.size()));
  const auto into = std::span(memory_).first(parts()[part].bytes.size());
  copy_.read(offsets_[part], into);
  return into;
}

Hashed hash_state(StateWalk& walk, const WalkProgress& progress) {
  Hashed done;
  FinalHash hash;
  for (std::size_t i = 0; i < walk.parts().size(); ++i) {
    StatePart part = walk.parts()[i];
    part.bytes = walk.bytes(i);
    hash.add(part, progress);
    done.parts.push_back(hash_parts({&part, 1}, progress).front());
  }
  done.hash = hash.finish();
  return done;
}

CheckpointStored save_state(StateWalk& walk, checkpoint::CheckpointStore store,
                            checkpoint::SaveRequest request, const WalkProgress& progress) {
  CheckpointStored done;
  const std::vector<StatePart>& parts = walk.parts();
  const std::vector<std::size_t> order = order_of_save(parts);
  std::size_t next = 0;
  const auto take = [&] {
    TROUPE_ASSERT(next < order.size(), "a save asks for each part twice");
    return walk.bytes(order[next++]);
  };
  try {
    FinalHash hash;
    for (StatePart part : parts) {
      part.bytes = take();
      hash.add(part, progress);
      done.parts.push_back(hash_parts({&part, 1}, progress).front());
    }
    done.hash = request.state_hash = hash.finish();
    request.tensors = parts;
    request.bytes_of = [&](const StatePart& part) {
      TROUPE_ASSERT(parts[order[next]].name == part.name, "a file is written in the order of its layout");
      return take();
    };
    done.path = store.save(request).value().manifest_path;
    return done;
  } catch (...) {
    while (walk.is_collective() && next < order.size()) take();
    throw;
  }
}

void follow_save(StateWalk& walk) {
  if (!walk.is_collective()) return;
  for (const std::size_t part : order_of_save(walk.parts())) walk.bytes(part);
}

}  // namespace troupe::train
