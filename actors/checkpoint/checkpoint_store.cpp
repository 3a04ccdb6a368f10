#include "actors/checkpoint/checkpoint_store.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <set>

#include "actors/checkpoint/sha256.hpp"

namespace troupe::checkpoint {
namespace {

constexpr std::string_view kStem = "checkpoint-";
constexpr std::string_view kDataSuffix = ".safetensors";
constexpr std::string_view kManifestSuffix = ".json";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::size_t kDigits = 8;

std::string file_name(std::uint64_t number, std::string_view suffix) {
  std::string digits = std::to_string(number);
  digits.insert(0, kDigits - std::min(kDigits, digits.size()), '0');
  return std::string(kStem) + digits + std::string(suffix);
}

/// A name in the folder that is ours.
struct OwnName {
  std::uint64_t number = 0;
  std::string suffix;
};

/// The parts of a name that this store would give, or nothing: other files in the folder are not touched.
std::optional<OwnName> parse_name(const std::string& name) {
  if (!name.starts_with(kStem)) return {};
  const std::size_t end = name.find_first_not_of("0123456789", kStem.size());
  constexpr std::size_t kMostDigits = 18;  // fits 64 bits
  if (end == std::string::npos || end - kStem.size() < kDigits || end - kStem.size() > kMostDigits) return {};
  OwnName own{std::stoull(name.substr(kStem.size(), end - kStem.size())), name.substr(end)};
  std::string_view kind = own.suffix;
  if (kind.ends_with(kTemporarySuffix)) kind.remove_suffix(kTemporarySuffix.size());
  if (kind != kDataSuffix && kind != kManifestSuffix) return {};
  return own;
}

std::vector<OwnName> own_names(const std::vector<std::string>& names) {
  std::vector<OwnName> own;
  for (const auto& name : names) {
    if (auto parsed = parse_name(name)) own.push_back(*std::move(parsed));
  }
  return own;
}

/// Numbers of the manifests, newest first.
std::vector<std::uint64_t> manifests_of(const std::vector<OwnName>& names) {
  std::vector<std::uint64_t> numbers;
  for (const auto& name : names) {
    if (name.suffix == kManifestSuffix) numbers.push_back(name.number);
  }
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  return numbers;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.1f MiB", static_cast<double>(bytes) / kMiB);
  return text.data();
}

}  // namespace

CheckpointStore::CheckpointStore(FileSystem& files, StoreOptions options)
    : files_(files), options_(std::move(options)) {
  if (options_.folder.empty())
    throw BadConfig("cannot keep checkpoints", "the folder has no name", "name a folder");
  if (options_.keep_last < 1) {
    throw BadConfig("cannot keep the last " + std::to_string(options_.keep_last) + " checkpoints",
                    "at least the newest must stay", "give 1 or more");
  }
}

ErrorInfo CheckpointStore::cannot_save(const ErrorInfo& cause, std::uint64_t needed_bytes) const {
  std::string why = cause.what + (cause.why.empty() ? "" : ": " + cause.why);
  if (const auto free = files_.free_bytes(options_.folder)) {
    why += "; " + human_bytes(*free) + " free, " + human_bytes(needed_bytes) + " needed";
  }
  return {
      cause.code, "cannot save a checkpoint in '" + options_.folder + "'", std::move(why),
      "free some space, check permissions or give another --checkpoint folder; older checkpoints are intact"};
}

Result<void> CheckpointStore::prepare() {
  if (auto made = files_.make_folder(options_.folder); !made) return cannot_save(made.error(), 0);
  const std::string trial = path(file_name(0, std::string(kDataSuffix) + std::string(kTemporarySuffix)));
  static_cast<void>(files_.remove(trial));  // a leftover of a crash, if any
  if (auto created = files_.create(trial); !created) return cannot_save(created.error(), 0);
  if (auto removed = files_.remove(trial); !removed) return cannot_save(removed.error(), 0);
  return {};
}

Result<void> CheckpointStore::write_whole(const std::string& name,
                                          std::span<const std::span<const std::byte>> parts) {
  const std::string temporary = path(name + std::string(kTemporarySuffix));
  auto written = [&]() -> Result<void> {
    auto file = files_.create(temporary);
    if (!file) return file.error();
    for (const auto part : parts) {
      if (auto appended = (*file)->append(part); !appended) return appended;
    }
    if (auto synced = (*file)->sync(); !synced) return synced;
    return files_.rename(temporary, path(name));
  }();
  if (!written) {
    static_cast<void>(files_.remove(temporary));  // best effort: the next save clears what stays
    return written;
  }
  return files_.sync_folder(options_.folder);
}

Result<void> CheckpointStore::write_pair(const SaveRequest& request, const SafetensorsLayout& layout,
                                         std::uint64_t number) {
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(layout.prefix))};
  for (const auto& tensor : layout.order) parts.push_back(tensor.bytes);
  Sha256 digest;
  for (const auto part : parts) digest.update(part);
  const std::string data_name = file_name(number, kDataSuffix);
  const Manifest manifest{
      request.job, request.state_hash, {data_name, layout.total_bytes, digest.finish()}, request.metadata};
  const auto text = encode_manifest(manifest);
  if (!text) return text.error();
  auto written = write_whole(data_name, parts);
  if (written) {
    const auto bytes = std::as_bytes(std::span(*text));
    written = write_whole(file_name(number, kManifestSuffix), std::span(&bytes, 1));
  }
  return written;
}

Result<SavedCheckpoint> CheckpointStore::save(const SaveRequest& request) {
  const Metadata for_other_readers{{"format", "pt"}};  // what Python's libraries ask for before they load
  auto layout = lay_out_safetensors(request.tensors, for_other_readers);
  if (!layout) return layout.error();
  if (auto made = files_.make_folder(options_.folder); !made)
    return cannot_save(made.error(), layout->total_bytes);
  auto names = files_.list(options_.folder);
  if (!names) return cannot_save(names.error(), layout->total_bytes);
  std::uint64_t number = 1;
  for (const auto& name : own_names(*names)) number = std::max(number, name.number + 1);
  if (auto written = write_pair(request, *layout, number); !written) {
    discard_orphan(number);
    return cannot_save(written.error(), layout->total_bytes);
  }
  return SavedCheckpoint{path(file_name(number, kManifestSuffix)), layout->total_bytes, prune(number)};
}

void CheckpointStore::discard_orphan(std::uint64_t number) {
  // Tensors without a manifest would fill a full disk for good. If the manifest did get its name, the pair is
  // whole.
  const auto names = files_.list(options_.folder);
  if (!names || std::count(names->begin(), names->end(), file_name(number, kManifestSuffix)) != 0) return;
  static_cast<void>(files_.remove(path(file_name(number, kDataSuffix))));
}

std::vector<std::string> CheckpointStore::prune(std::uint64_t newest) {
  std::vector<std::string> warnings;
  const auto note = [&warnings](const Result<void>& done) {
    if (!done) warnings.push_back(done.error().message());
    return done.ok();
  };
  const auto names = files_.list(options_.folder);
  if (!names) return {names.error().message()};
  const auto own = own_names(*names);
  const auto manifests = manifests_of(own);
  const auto kept = std::min(manifests.size(), static_cast<std::size_t>(options_.keep_last));
  const std::set<std::uint64_t> keep(manifests.begin(),
                                     manifests.begin() + static_cast<std::ptrdiff_t>(kept));
  bool removed_manifest = false;
  for (const auto number : manifests) {
    if (keep.contains(number)) continue;
    if (!note(files_.remove(path(file_name(number, kManifestSuffix))))) return warnings;
    removed_manifest = true;
  }
  // A manifest must never outlive its data, not even in a crash that reorders.
  if (removed_manifest && !note(files_.sync_folder(options_.folder))) return warnings;
  for (const auto& name : own) {
    const bool temporary = name.suffix.ends_with(kTemporarySuffix) && name.number <= newest;
    const bool orphan = name.suffix == kDataSuffix && !keep.contains(name.number);
    if (temporary || orphan) note(files_.remove(path(file_name(name.number, name.suffix))));
  }
  return warnings;
}

Result<LoadedCheckpoint> CheckpointStore::load(std::uint64_t number) {
  LoadedCheckpoint loaded;
  loaded.manifest_path = path(file_name(number, kManifestSuffix));
  const auto text = files_.read(loaded.manifest_path, kMaxManifestBytes);
  if (!text) return text.error();
  auto manifest = decode_manifest(loaded.manifest_path, *text);
  if (!manifest) return manifest.error();
  loaded.manifest = *std::move(manifest);
  const auto& file = loaded.manifest.file;
  const std::string data_path = path(file_name(number, kDataSuffix));
  const auto corrupt = [](std::string what, std::string why) {
    return ErrorInfo{ErrorCode::kCorrupt, std::move(what), std::move(why), ""};
  };
  // The name is derived, not believed: a manifest cannot lead out of the folder.
  if (file.name != file_name(number, kDataSuffix)) {
    return corrupt("cannot use manifest '" + loaded.manifest_path + "'", "it belongs to another file");
  }
  auto bytes = files_.read(data_path, file.bytes);
  if (!bytes) return bytes.error();
  const std::string what = "cannot use '" + data_path + "'";
  if (bytes->size() != file.bytes) {
    return corrupt(
        what, "expected " + std::to_string(file.bytes) + " bytes, found " + std::to_string(bytes->size()));
  }
  if (sha256_hex(*bytes) != file.sha256) return corrupt(what, "its SHA-256 is not the manifest's");
  loaded.bytes = *std::move(bytes);
  auto decoded = read_safetensors(data_path, loaded.bytes);
  if (!decoded) return decoded.error();
  loaded.tensors = std::move(decoded->tensors);
  return loaded;
}

Result<LoadedCheckpoint> CheckpointStore::load_latest() {
  const auto names = files_.list(options_.folder);
  if (!names) {
    return ErrorInfo{ErrorCode::kIo, "cannot load a checkpoint",
                     names.error().what + ": " + names.error().why, "check the --checkpoint folder"};
  }
  std::vector<std::string> warnings;
  for (const auto number : manifests_of(own_names(*names))) {
    auto loaded = load(number);
    if (loaded) {
      loaded->warnings = std::move(warnings);
      return loaded;
    }
    warnings.push_back("passed over checkpoint " + std::to_string(number) + ": " + loaded.error().message());
  }
  if (warnings.empty()) {
    return ErrorInfo{ErrorCode::kUnavailable, "there is no checkpoint to resume from",
                     "'" + options_.folder + "' holds none",
                     "start without --resume, or name another folder"};
  }
  std::string why;
  for (const auto& warning : warnings) why += (why.empty() ? "" : "; ") + warning;
  return ErrorInfo{ErrorCode::kCorrupt, "no checkpoint in '" + options_.folder + "' is whole", std::move(why),
                   "restore the folder from a copy, or start without --resume"};
}

Result<LoadedCheckpoint> CheckpointStore::load_manifest(const std::string& manifest_path) {
  const auto name = parse_name(manifest_path.substr(manifest_path.rfind('/') + 1));
  if (!name || name->suffix != kManifestSuffix ||
      manifest_path != path(file_name(name->number, kManifestSuffix))) {
    return ErrorInfo{ErrorCode::kRefused, "refused the checkpoint '" + manifest_path + "'",
                     "it is no manifest in " + options_.folder, "give a path that save() returned"};
  }
  return load(name->number);
}

}  // namespace troupe::checkpoint
