#include "actors/train/api/weights.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/engine/train_state.hpp"

namespace troupe::train {

namespace {

void copy_parts(const std::string& name, const std::vector<StatePart>& parts, const std::string& prefix,
                const std::vector<NamedTensor>& tensors) {
  const auto find = [&](const std::string& tensor) -> const StatePart* {
    for (const std::string& full : {prefix + tensor, "module." + prefix + tensor}) {
      const auto at =
          std::find_if(parts.begin(), parts.end(), [&](const StatePart& part) { return part.name == full; });
      if (at != parts.end()) return &*at;
    }
    return nullptr;
  };
  // A tied tensor is in the file under one of its names, or under several.
  std::unordered_set<const torch::TensorImpl*> found;
  for (const NamedTensor& to : tensors) {
    if (find(to.name) != nullptr) found.insert(to.tensor.unsafeGetTensorImpl());
  }
  std::vector<std::pair<torch::Tensor, torch::Tensor>> values;  ///< what gets which
  for (const NamedTensor& to : tensors) {
    const StatePart* part = find(to.name);
    if (part == nullptr && found.contains(to.tensor.unsafeGetTensorImpl())) continue;
    if (part == nullptr)
      throw BadConfig(
          "the weights of '" + prefix + to.name + "' are not in " + name,
          "it has " + std::to_string(parts.size()) + " tensors" +
              (parts.empty() ? "" : ", the first is '" + parts.front().name + "'"),
          "load them into the model that they were trained with, and name the module where the job's "
          "setup() named it");
    const torch::Tensor value = part_as_tensor(*part);
    if (!value.defined() || value.sizes() != to.tensor.sizes() ||
        value.scalar_type() != to.tensor.scalar_type())
      throw BadConfig("the weights of '" + prefix + to.name + "' in " + name + " do not fit the module",
                      value.defined() ? "they are " + c10::str(value.sizes()) + ", the module's are " +
                                            c10::str(to.tensor.sizes())
                                      : "their type is not one that a module has",
                      "load them into the model that they were trained with");
    values.emplace_back(to.tensor, value);
  }
  const torch::NoGradGuard no_grad;
  for (auto& [tensor, value] : values) tensor.copy_(value);
}

}  // namespace

void copy_weights(const std::string& name, std::span<const std::byte> file, const std::string& prefix,
                  const std::vector<NamedTensor>& tensors) {
  copy_parts(name, checkpoint::read_safetensors(name, file).value().tensors, prefix, tensors);
}

void copy_weights_from(const std::string& path, const std::string& prefix,
                       const std::vector<NamedTensor>& tensors) {
  if (!std::filesystem::is_regular_file(path))
    throw BadConfig("cannot read the weights '" + path + "'", "it is no file",
                    "name a safetensors file, such as a checkpoint's");
  const std::filesystem::path named(path);
  if (named.extension() == ".json") {  // a checkpoint's manifest, which names the file and its hash
    checkpoint::PosixFileSystem files;
    const std::string folder = named.has_parent_path() ? named.parent_path().string() : ".";
    const std::string manifest = folder + "/" + named.filename().string();
    const auto loaded = checkpoint::CheckpointStore(files, {folder}).load_manifest(manifest).value();
    return copy_parts(path, loaded.tensors, prefix, tensors);
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file)
    throw IoError(io_error("cannot read the weights '" + path + "'", errno, "name a safetensors file"));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file)
    throw IoError(io_error("cannot read the weights '" + path + "'", errno, "name a safetensors file"));
  copy_weights(path, bytes, prefix, tensors);
}

}  // namespace troupe::train
