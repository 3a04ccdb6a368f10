#include "actors/train/api/weights.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "actors/checkpoint/torch_save.hpp"
#include "actors/train/engine/train_state.hpp"
#include "actors/train/job/ema.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/whole_file.hpp"

namespace troupe::train {

namespace {

/// Which part of a file gets into which tensor of a module, by name.
struct Matched {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> values;  ///< what gets which
  LeftOut left_out;
};

/// "[64, 8]", or "[64, 8] of Half" where types differ.
std::string text_of_shape(const torch::Tensor& tensor, bool with_type) {
  return c10::str(tensor.sizes()) +
         (with_type ? std::string(" of ") + torch::toString(tensor.scalar_type()) : std::string());
}

Matched match(const std::vector<StatePart>& parts, const std::string& prefix,
              const std::vector<NamedTensor>& tensors) {
  std::unordered_map<std::string, const StatePart*> by_name;
  for (const StatePart& part : parts) by_name.emplace(part.name, &part);
  std::unordered_set<const StatePart*> used;
  const auto find = [&](const std::string& tensor) -> const StatePart* {
    for (const std::string& full : {prefix + tensor, "module." + prefix + tensor}) {
      if (const auto at = by_name.find(full); at != by_name.end()) return at->second;
    }
    return nullptr;
  };
  // A tied tensor is in the file under one of its names, or under several.
  std::unordered_set<const torch::TensorImpl*> found;
  for (const NamedTensor& to : tensors) {
    if (find(to.name) != nullptr) found.insert(to.tensor.unsafeGetTensorImpl());
  }
  Matched matched;
  for (const NamedTensor& to : tensors) {
    const StatePart* part = find(to.name);
    if (part == nullptr && found.contains(to.tensor.unsafeGetTensorImpl())) continue;
    const torch::Tensor value = part == nullptr ? torch::Tensor() : part_as_tensor(*part);
    const bool same_type = value.defined() && value.scalar_type() == to.tensor.scalar_type();
    const bool converts =
        value.defined() && !same_type && value.is_floating_point() && to.tensor.is_floating_point();
    if ((same_type || converts) && value.sizes() == to.tensor.sizes()) {
      used.insert(part);
      matched.values.emplace_back(to.tensor, value);
      if (converts)
        matched.left_out.converted.push_back(std::string(torch::toString(value.scalar_type())) + " to " +
                                             torch::toString(to.tensor.scalar_type()));
    } else if (part == nullptr) {
      matched.left_out.missing.push_back(prefix + to.name);
    } else {
      used.insert(part);
      matched.left_out.other.push_back(
          prefix + to.name + " (" +
          (value.defined() ? text_of_shape(value, !same_type)
                           : "an unknown type, " + std::string(checkpoint::dtype_name(part->dtype)) + ",") +
          " there, the module's is " + text_of_shape(to.tensor, !same_type) + ")");
    }
  }
  for (const StatePart& part : parts) {
    // Of a checkpoint the rest is no weight.
    const bool weight = !part.name.starts_with("optimizer") && !part.name.starts_with("scheduler") &&
                        !part.name.starts_with("user/");
    if (weight && !used.contains(&part)) matched.left_out.unused.push_back(part.name);
  }
  return matched;
}

void copy(Matched& matched) {
  const torch::NoGradGuard no_grad;
  for (auto& [tensor, value] : matched.values) tensor.copy_(value);
}

/// Its header has the file's size and all names: gigabytes of something else are not read first.
void refuse_by_header(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::uint64_t>(file.tellg());
  const auto first_bytes = [&](std::uint64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(count, size)));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  };
  const auto length = first_bytes(sizeof(std::uint64_t));
  if (!file || length.empty() || checkpoint::is_torch_save(length)) return;  // who reads all of it says so
  if (checkpoint::is_old_torch_save(length)) (void)checkpoint::read_torch_save(path, length).value();
  const auto prefix = first_bytes(checkpoint::safetensors_prefix_bytes(length));
  if (file) (void)checkpoint::read_safetensors_header(path, prefix, size).value();
}

}  // namespace

std::string to_string(const LeftOut& left_out) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& names, const std::string& what) {
    constexpr std::size_t kMost = 20, kMostOfOne = 400;
    if (names.empty()) return;
    text += (text.empty() ? "" : "; ") + what;
    for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
      text += (i == 0 ? ": " : ", ") + shown_name(names[i], kMostOfOne);
    if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  };
  add(left_out.missing, "not in the file");
  add(left_out.other, "of another shape or type");
  add(left_out.unused, "of the file, not used");
  return text;
}

std::string text_of_converted(const LeftOut& left_out) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& types : left_out.converted) ++counts[types];
  std::string text;
  for (const auto& [types, count] : counts)
    text += (text.empty() ? "" : ", ") + count_of(count, "tensor") + " of " + types;
  return text;
}

LeftOut copy_matching_weights(const std::string& name, std::span<const std::byte> file,
                              const std::string& prefix, const std::vector<NamedTensor>& tensors) {
  Matched matched = match(checkpoint::read_safetensors(name, file).value().tensors, prefix, tensors);
  copy(matched);
  return matched.left_out;
}

LeftOut copy_weights(const std::string& name, std::span<const std::byte> file, const std::string& prefix,
                     const std::vector<NamedTensor>& tensors) {
  const auto parts = checkpoint::read_safetensors(name, file).value().tensors;
  Matched matched = match(parts, prefix, tensors);
  const LeftOut& left_out = matched.left_out;
  if (!left_out.missing.empty())
    throw BadConfig("the weights of '" + left_out.missing.front() + "' are not in " + name,
                    "it has " + std::to_string(parts.size()) + " tensors" +
                        (parts.empty() ? "" : ", the first is '" + shown_name(parts.front().name) + "'"),
                    "load them into the model that they were trained with, and name the module where the "
                    "job's setup() named it");
  if (!left_out.other.empty())
    throw BadConfig("the weights in " + name + " do not fit the module", left_out.other.front(),
                    "load them into the model that they were trained with");
  copy(matched);
  return left_out;
}

std::vector<std::byte> averaged_weights(const std::string& name, std::span<const std::byte> file) {
  auto parts = checkpoint::read_safetensors(name, file).value().tensors;
  const std::string prefix = kAveragedPrefix;
  std::unordered_map<std::string, StatePart> averages;
  for (const StatePart& part : parts) {
    if (part.name.starts_with(prefix)) averages.emplace(part.name.substr(prefix.size()), part);
  }
  if (averages.empty())
    throw BadConfig("there are no averaged weights in " + name, "its job has no ema()", "load the weights");
  // Before the first step that counts they are those that the job was made with; the weights may be a file's.
  const bool has_steps = std::none_of(parts.begin(), parts.end(), [](const StatePart& part) {
    return part.name == kAveragedSteps &&
           std::all_of(part.bytes.begin(), part.bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  });
  for (StatePart& part : parts) {
    if (!has_steps) break;
    if (const auto at = averages.find(part.name); at != averages.end()) part.bytes = at->second.bytes;
  }
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
}

std::vector<std::byte> read_weights(const std::string& path) {
  if (!std::filesystem::is_regular_file(path))
    throw BadConfig("cannot read the weights '" + path + "'", "it is no file",
                    "name a checkpoint's manifest, a safetensors file, or one of torch.save");
  const std::filesystem::path named(path);
  if (named.extension() == ".json") {  // a checkpoint's manifest, which names the file and its hash
    checkpoint::PosixFileSystem files;
    const std::string folder = named.has_parent_path() ? named.parent_path().string() : ".";
    const std::string manifest = folder + "/" + named.filename().string();
    return checkpoint::CheckpointStore(files, {folder}).load_manifest(manifest).value().file;
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file)
    throw IoError(io_error("cannot read the weights '" + path + "'", errno, "name a safetensors file"));
  refuse_by_header(path);
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file)
    throw IoError(io_error("cannot read the weights '" + path + "'", errno, "name a safetensors file"));
  if (!checkpoint::is_torch_save(bytes)) return bytes;
  const auto saved = checkpoint::read_torch_save(path, bytes).value();
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(saved.tensors).value());
}

void copy_weights_from(const std::string& path, const std::string& prefix,
                       const std::vector<NamedTensor>& tensors) {
  const LeftOut left_out = copy_weights(path, read_weights(path), prefix, tensors);
  if (const auto text = text_of_converted(left_out); !text.empty())
    log(LogLevel::kWarning, "converted from '" + path + "': " + text);
}

void require_weights(const RunResult& result) {
  if (result.weights.empty())
    throw BadConfig("the run has no weights",
                    "it was run with return_weights = false, stopped before its first step, or its trainers "
                    "died at its end",
                    "leave that option out, or load_weights() a checkpoint's file");
}

void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<torch::Tensor> owners;
  std::vector<StatePart> parts;
  for (const NamedTensor& one : tensors) {
    if (!one.tensor.defined() || one.tensor.layout() != torch::kStrided)
      throw BadConfig("cannot write tensor '" + shown_name(one.name) + "'",
                      one.tensor.defined() ? "it is sparse" : "it is undefined",
                      "leave it out, or write to_dense() of it");
    owners.push_back(one.tensor.detach().cpu().resolve_neg().contiguous());
    parts.push_back(tensor_as_part(one.name, owners.back()));
  }
  const auto layout = checkpoint::lay_out_safetensors(parts).value();
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(layout.prefix))};
  for (const StatePart& part : layout.order) pieces.push_back(part.bytes);
  write_whole(path, std::span<const std::span<const std::byte>>(pieces)).value();
}

void RunResult::save(const std::string& path) const {
  require_weights(*this);
  write_whole(path, {weights}).value();
}

}  // namespace troupe::train
