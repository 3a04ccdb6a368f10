#include "actors/checkpoint/checkpoint_store.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "actors/checkpoint/sha256.hpp"

namespace troupe::checkpoint {
namespace {

constexpr std::string_view kStem = "checkpoint-";
constexpr std::string_view kDataSuffix = ".safetensors";
constexpr std::string_view kManifestSuffix = ".json";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::size_t kDigits = 8;
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

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

/// Numbers of the manifests, oldest first.
std::vector<std::uint64_t> manifests_of(const std::vector<OwnName>& names) {
  std::vector<std::uint64_t> numbers;
  for (const auto& name : names) {
    if (name.suffix == kManifestSuffix) numbers.push_back(name.number);
  }
  std::sort(numbers.begin(), numbers.end());
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
}

ErrorInfo CheckpointStore::cannot_save(const ErrorInfo& cause, std::optional<Space> space) const {
  std::string why = cause.what + (cause.why.empty() ? "" : ": " + cause.why);
  if (space) {
    why +=
        "; before the save " + human_bytes(space->free) + " free, " + human_bytes(space->needed) + " needed";
  }
  const bool full = space && space->free < space->needed;
  return {cause.code, "cannot save a checkpoint in '" + options_.folder + "'", std::move(why),
          std::string(full ? "free some space" : "check the disk and its permissions") +
              ", or name another folder; older checkpoints are intact"};
}

Result<void> CheckpointStore::prepare() {
  if (auto made = files_.make_folder(options_.folder); !made) return cannot_save(made.error());
  const std::string trial = path(file_name(0, std::string(kDataSuffix) + std::string(kTemporarySuffix)));
  static_cast<void>(files_.remove(trial));  // a leftover of a crash, if any
  if (auto created = files_.create(trial); !created) return cannot_save(created.error());
  if (auto removed = files_.remove(trial); !removed) return cannot_save(removed.error());
  return {};
}

Result<void> CheckpointStore::write_whole(const std::string& name, std::size_t parts, const PartAt& part_at,
                                          Sha256& digest, Made& made) {
  const std::string temporary = path(name + std::string(kTemporarySuffix));
  auto file = files_.create(temporary);
  if (!file) return file.error();
  made.push_back(temporary);
  std::size_t fresh = 0;  // bytes since the last sync, of one part or of many
  for (std::size_t i = 0; i < parts; ++i) {
    auto part = part_at(i);
    while (!part.empty()) {
      const auto piece = part.first(std::min(part.size(), kPieceBytes - fresh));
      digest.update(piece);
      if (auto appended = (*file)->append(piece); !appended) return appended;
      part = part.subspan(piece.size());
      fresh += piece.size();
      if (fresh < kPieceBytes) continue;
      // A long file is synced as it grows, so that no sync takes long.
      if (auto synced = (*file)->sync(); !synced) return synced;
      if (options_.progress) options_.progress();
      fresh = 0;
    }
  }
  if (auto synced = (*file)->sync(); !synced) return synced;
  if (auto renamed = files_.rename(temporary, path(name)); !renamed) return renamed;
  made.back() = path(name);
  return files_.sync_folder(options_.folder);
}

std::string CheckpointStore::digest_of(std::span<const std::byte> bytes) const {
  Sha256 digest;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kPieceBytes))) {
    digest.update(bytes.first(std::min(bytes.size(), kPieceBytes)));
    if (options_.progress) options_.progress();
  }
  return digest.finish();
}

Result<void> CheckpointStore::write_pair(const SaveRequest& request, const SafetensorsLayout& layout,
                                         std::uint64_t number, Made& made) {
  const std::string data_name = file_name(number, kDataSuffix);
  Sha256 digest;
  const auto part_at = [&](std::size_t i) {
    if (i == 0) return std::as_bytes(std::span(layout.prefix));
    const TensorView& tensor = layout.order[i - 1];
    return request.bytes_of ? request.bytes_of(tensor) : tensor.bytes;
  };
  if (auto written = write_whole(data_name, layout.order.size() + 1, part_at, digest, made); !written)
    return written;
  const Manifest manifest{request.job,
                          request.position,
                          request.state_hash,
                          {data_name, layout.total_bytes, digest.finish()},
                          request.metadata};
  const auto text = encode_manifest(manifest);
  if (!text) return text.error();
  Sha256 unused;
  return write_whole(
      file_name(number, kManifestSuffix), 1, [&](std::size_t) { return std::as_bytes(std::span(*text)); },
      unused, made);
}

Result<SavedCheckpoint> CheckpointStore::save(const SaveRequest& request) {
  const Metadata for_other_readers{{"format", "pt"}};  // what Python's libraries ask for before they load
  auto layout = lay_out_safetensors(request.tensors, for_other_readers);
  if (!layout) return layout.error();
  if (auto made = files_.make_folder(options_.folder); !made) return cannot_save(made.error());
  // Now: a save that fails has taken some of it, and gives it back.
  std::optional<Space> space;
  if (const auto free = files_.free_bytes(options_.folder)) space = Space{*free, layout->total_bytes};
  auto names = files_.list(options_.folder);
  if (!names) return cannot_save(names.error(), space);
  std::uint64_t number = 1;
  for (const auto& name : own_names(*names)) number = std::max(number, name.number + 1);
  Made made;
  try {
    auto written = write_pair(request, *layout, number, made);
    if (written) {
      if (auto read_back = open(number); !read_back) written = read_back.error();
    }
    if (!written) {
      discard(made);
      return cannot_save(written.error(), space);
    }
  } catch (const Error&) {
    discard(made);
    throw;
  }
  return SavedCheckpoint{path(file_name(number, kManifestSuffix)), layout->total_bytes};
}

/// What a failed save has left, which would fill a full disk for good. Best effort: what stays is an older
/// checkpoint's equal or does not load.
void CheckpointStore::discard(const Made& made) {
  for (auto name = made.rbegin(); name != made.rend(); ++name) {
    static_cast<void>(files_.remove(*name));
    // A manifest must not outlive its data.
    if (name + 1 != made.rend()) static_cast<void>(files_.sync_folder(options_.folder));
  }
}

Result<void> CheckpointStore::discard(const std::string& manifest_path) {
  const auto number = number_of(manifest_path);
  if (!number) return number.error();
  if (auto gone = files_.remove(manifest_path); !gone) return gone;
  discard(Made{path(file_name(*number, kDataSuffix)), manifest_path});
  return {};
}

Result<void> CheckpointStore::prune(const std::string& oldest_kept, const std::string& spared) {
  const auto oldest = number_of(oldest_kept);
  if (!oldest) return oldest.error();
  std::optional<std::uint64_t> stays;
  if (!spared.empty()) {
    const auto number = number_of(spared);
    if (!number) return number.error();
    stays = *number;
  }
  const auto names = files_.list(options_.folder);
  if (!names) return names.error();
  const auto own = own_names(*names);
  bool removed_manifest = false;
  for (const auto number : manifests_of(own)) {
    if (number >= *oldest || number == stays) continue;
    if (auto removed = files_.remove(path(file_name(number, kManifestSuffix))); !removed) return removed;
    removed_manifest = true;
  }
  // A manifest must never outlive its data, not even in a crash that reorders.
  if (removed_manifest) {
    if (auto synced = files_.sync_folder(options_.folder); !synced) return synced;
  }
  for (const auto& name : own) {
    if (name.number >= *oldest || name.number == stays || name.suffix == kManifestSuffix) continue;
    if (auto removed = files_.remove(path(file_name(name.number, name.suffix))); !removed) return removed;
  }
  return {};
}

Result<Manifest> CheckpointStore::read_manifest(std::uint64_t number) {
  const std::string manifest_path = path(file_name(number, kManifestSuffix));
  const auto text = files_.read(manifest_path, kMaxManifestBytes);
  if (!text) return text.error();
  auto manifest = decode_manifest(manifest_path, *text);
  // The name is derived, not believed: a manifest cannot lead out of the folder.
  if (manifest && manifest->file.name != file_name(number, kDataSuffix)) {
    return ErrorInfo{ErrorCode::kCorrupt, "cannot use manifest '" + manifest_path + "'",
                     "it belongs to another file", ""};
  }
  return manifest;
}

Result<OpenCheckpoint> CheckpointStore::open(std::uint64_t number) {
  auto manifest = read_manifest(number);
  if (!manifest) return manifest.error();
  OpenCheckpoint opened;
  opened.manifest_ = *std::move(manifest);
  opened.path_ = path(opened.manifest_.file.name);
  auto file = files_.open(opened.path_, opened.manifest_.file.bytes);
  if (!file) return file.error();
  opened.file_ = *std::move(file);
  if (auto whole = opened.check(options_.progress); !whole) return whole.error();
  return opened;
}

ErrorInfo OpenCheckpoint::corrupt(std::string why) const {
  return {ErrorCode::kCorrupt, "cannot use '" + path_ + "'", std::move(why), ""};
}

std::span<std::byte> OpenCheckpoint::memory(std::size_t bytes) {
  if (bytes > capacity_) {
    memory_ = nullptr;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    capacity_ = bytes;
  }
  return {memory_.get(), bytes};
}

/// Reads all of the file.
Result<void> OpenCheckpoint::check(const std::function<void()>& progress) {
  const auto& said = manifest_.file;
  if (file_->size() != said.bytes)
    return corrupt("expected " + std::to_string(said.bytes) + " bytes, found " +
                   std::to_string(file_->size()));
  Sha256 whole;
  std::vector<std::byte> prefix(static_cast<std::size_t>(std::min<std::uint64_t>(said.bytes, 8)));
  if (auto read = file_->read(0, prefix); !read) return read;
  prefix.resize(static_cast<std::size_t>(std::min(said.bytes, safetensors_prefix_bytes(prefix))));
  if (auto read = file_->read(0, prefix); !read) return read;
  whole.update(prefix);
  auto decoded = read_safetensors_header(path_, prefix, said.bytes);
  std::uint64_t at = prefix.size();
  const auto hash = [&](std::uint64_t end, Xxh3& part) -> Result<void> {
    while (at < end) {
      const auto piece = memory(static_cast<std::size_t>(std::min<std::uint64_t>(end - at, kPieceBytes)));
      if (auto read = file_->read(at, piece); !read) return read;
      at += piece.size();
      whole.update(piece);
      part.update(piece);
      if (progress) progress();
    }
    return {};
  };
  if (decoded) tensors_ = std::move(decoded->tensors);
  Xxh3 part;
  for (const TensorView& tensor : tensors_) {
    Place place{at, {}};
    part.reset();
    if (auto read = hash(at + tensor.bytes.size(), part); !read) return read;
    place.digest = part.digest();
    places_.emplace(tensor.name, place);
  }
  if (auto read = hash(said.bytes, part); !read) return read;  // of what does not decode
  if (whole.finish() != said.sha256) return corrupt("its SHA-256 is not the manifest's");
  return decoded ? Result<void>() : decoded.error();
}

Result<std::span<const std::byte>> OpenCheckpoint::bytes_of(const TensorView& tensor) {
  const Place& place = places_.at(tensor.name);
  const auto bytes = memory(tensor.bytes.size());
  if (auto read = file_->read(place.offset, bytes); !read) return read.error();
  Xxh3 hash;
  hash.update(bytes);
  if (hash.digest() != place.digest)
    return corrupt("tensor '" + tensor.name + "' has other bytes than a moment ago");
  return std::span<const std::byte>(bytes);
}

Result<std::vector<ListedCheckpoint>> CheckpointStore::list() {
  const auto names = files_.list(options_.folder);
  if (!names) {
    return ErrorInfo{ErrorCode::kIo, "cannot look for checkpoints",
                     names.error().what + ": " + names.error().why, "check the checkpoint folder"};
  }
  std::vector<ListedCheckpoint> listed;
  for (const auto number : manifests_of(own_names(*names))) {
    const std::string manifest_path = path(file_name(number, kManifestSuffix));
    const auto text = files_.read(manifest_path, kMaxManifestBytes);
    listed.push_back(
        {manifest_path, text ? decode_manifest(manifest_path, *text) : Result<Manifest>(text.error())});
  }
  return listed;
}

Result<std::uint64_t> CheckpointStore::number_of(const std::string& manifest_path) const {
  const auto name = parse_name(manifest_path.substr(manifest_path.rfind('/') + 1));
  if (!name || name->suffix != kManifestSuffix ||
      manifest_path != path(file_name(name->number, kManifestSuffix))) {
    return ErrorInfo{ErrorCode::kRefused, "refused the checkpoint '" + manifest_path + "'",
                     "it is no manifest in " + options_.folder, "give a path that save() returned"};
  }
  return name->number;
}

Result<OpenCheckpoint> CheckpointStore::open_manifest(const std::string& manifest_path) {
  const auto number = number_of(manifest_path);
  if (!number) return number.error();
  return open(*number);
}

Result<LoadedCheckpoint> CheckpointStore::load_manifest(const std::string& manifest_path) {
  const auto number = number_of(manifest_path);
  if (!number) return number.error();
  auto manifest = read_manifest(*number);
  if (!manifest) return manifest.error();
  LoadedCheckpoint loaded;
  loaded.manifest_path = manifest_path;
  loaded.manifest = *std::move(manifest);
  const auto& file = loaded.manifest.file;
  const std::string data_path = path(file.name);
  auto bytes = files_.read(data_path, file.bytes);
  if (!bytes) return bytes.error();
  loaded.file = *std::move(bytes);
  const auto corrupt = [&](std::string why) {
    return ErrorInfo{ErrorCode::kCorrupt, "cannot use '" + data_path + "'", std::move(why), ""};
  };
  if (loaded.file.size() != file.bytes)
    return corrupt("expected " + std::to_string(file.bytes) + " bytes, found " +
                   std::to_string(loaded.file.size()));
  if (digest_of(loaded.file) != file.sha256) return corrupt("its SHA-256 is not the manifest's");
  auto decoded = read_safetensors(data_path, loaded.file);
  if (!decoded) return decoded.error();
  loaded.tensors = std::move(decoded->tensors);
  return loaded;
}

}  // namespace troupe::checkpoint
