#include "actors/checkpoint/manifest.hpp"

#include "actors/checkpoint/sha256.hpp"
#include "actors/checkpoint/strict_json.hpp"

namespace troupe::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "troupe checkpoint";

/// Throws json::type_error for text that is not UTF-8.
std::string encode_text(const Manifest& manifest) {
  ordered_json object;
  object["format"] = kFormat;
  object["version"] = kManifestVersion;
  object["job"] = {{"logical_ranks", manifest.job.logical_ranks},
                   {"seed", manifest.job.seed},
                   {"micro_batch", manifest.job.micro_batch},
                   {"struct", manifest.job.job},
                   {"struct_sha256", manifest.job.job_sha256},
                   {"train_size", manifest.job.train_size},
                   {"test_size", manifest.job.test_size},
                   {"numerics", manifest.job.numerics},
                   {"sampling", manifest.job.sampling}};
  if (manifest.job.validation_size != 0) object["job"]["validation_size"] = manifest.job.validation_size;
  object["position"] = {{"epoch", manifest.position.epoch}, {"global_step", manifest.position.global_step}};
  object["state_hash"] = manifest.state_hash;
  object["file"] = {
      {"name", manifest.file.name}, {"bytes", manifest.file.bytes}, {"sha256", manifest.file.sha256}};
  object["metadata"] = ordered_json::object();
  for (const auto& [key, value] : manifest.metadata) object["metadata"][key] = value;
  const std::string body = object.dump();
  object["sha256"] = sha256_hex(std::as_bytes(std::span(body)));
  return object.dump(2) + "\n";
}

/// Reads members of an object, remembering the first one that is missing or of another type.
class Reader {
 public:
  Reader(const json& object, std::string& why) : object_(object), why_(why) {}

  bool has(const char* key) const { return member(key) != nullptr; }
  std::uint64_t count(const char* key) {
    const json* value = member(key);
    if (value == nullptr || !value->is_number_unsigned()) return fail(key, "a count"), 0;
    return value->get<std::uint64_t>();
  }
  std::string text(const char* key) {
    const json* value = member(key);
    if (value == nullptr || !value->is_string()) return fail(key, "a string"), "";
    return value->get<std::string>();
  }
  const json& object(const char* key) {
    static const json none = json::object();
    const json* value = member(key);
    if (value == nullptr || !value->is_object()) return fail(key, "an object"), none;
    return *value;
  }

 private:
  const json* member(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  void fail(const char* key, const char* expected) {
    if (why_.empty()) why_ = "'" + std::string(key) + "' is missing or not " + expected;
  }

  const json& object_;
  std::string& why_;
};

Manifest read_members(const json& object, std::string& why) {
  Manifest manifest;
  Reader top(object, why);
  Reader job(top.object("job"), why);
  manifest.job = {job.count("logical_ranks"), job.count("seed"),         job.count("micro_batch"),
                  job.text("struct"),         job.text("struct_sha256"), job.count("train_size"),
                  job.count("test_size"),     job.text("numerics"),      job.text("sampling")};
  if (job.has("validation_size")) manifest.job.validation_size = job.count("validation_size");
  Reader position(top.object("position"), why);
  manifest.position = {position.count("epoch"), position.count("global_step")};
  manifest.state_hash = top.text("state_hash");
  Reader file(top.object("file"), why);
  manifest.file = {file.text("name"), file.count("bytes"), file.text("sha256")};
  const json& metadata = top.object("metadata");
  Reader strings(metadata, why);
  for (const auto& [key, value] : metadata.items()) manifest.metadata[key] = strings.text(key.c_str());
  return manifest;
}

Result<Manifest> decode(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return corrupt_because("it is larger than " + std::to_string(kMaxManifestBytes) + " bytes");
  }
  constexpr int kDepth = 2;
  const auto object = parse_strict_json(text, kDepth);
  if (!object) return corrupt_because("it has " + object.error().why);
  if (!object->is_object()) return corrupt_because("it is no JSON object");
  std::string why;
  Reader top(*object, why);
  if (top.text("format") != kFormat) return corrupt_because("it is no manifest of a checkpoint");
  const std::uint64_t version = top.count("version");
  if (why.empty() && version != kManifestVersion) {
    return ErrorInfo{ErrorCode::kRefused, "",
                     "it has format version " + std::to_string(version) + ", this program reads version " +
                         std::to_string(kManifestVersion),
                     "resume with the program that wrote it"};
  }
  Manifest manifest = read_members(*object, why);
  if (!why.empty()) return corrupt_because(why);
  const auto again = encode_manifest(manifest);
  if (!again || *again != text) return corrupt_because("its checksum does not hold");
  return manifest;
}

}  // namespace

std::optional<std::string> difference(const JobIdentity& written, const JobIdentity& ours) {
  const auto differ = [](const std::string& what, const auto& theirs, const auto& mine) {
    return "it was written with " + what + " " + theirs + ", this run has " + mine;
  };
  const auto numbers = [&](const std::string& what, std::uint64_t theirs, std::uint64_t mine) {
    return theirs == mine ? std::optional<std::string>()
                          : differ(what, std::to_string(theirs), std::to_string(mine));
  };
  if (auto text = numbers("logical ranks", written.logical_ranks, ours.logical_ranks)) return text;
  if (auto text = numbers("seed", written.seed, ours.seed)) return text;
  if (auto text = numbers("micro-batch", written.micro_batch, ours.micro_batch)) return text;
  if (written.job_sha256 != ours.job_sha256)
    return differ("the job", written.job + " (" + written.job_sha256.substr(0, 8) + ")",
                  ours.job + " (" + ours.job_sha256.substr(0, 8) + ")");
  if (ours.train_size != 0) {
    if (auto text = numbers("a training set of size", written.train_size, ours.train_size)) return text;
    if (auto text = numbers("a test set of size", written.test_size, ours.test_size)) return text;
    if (auto text = numbers("a validation set of size", written.validation_size, ours.validation_size))
      return text;
  }
  if (!ours.sampling.empty() && written.sampling != ours.sampling)
    return differ("samples drawn as", written.sampling, ours.sampling);
  if (!ours.numerics.empty() && written.numerics != ours.numerics)
    return differ("trainers that compute with", "'" + written.numerics + "'", "'" + ours.numerics + "'");
  return {};
}

Result<std::string> encode_manifest(const Manifest& manifest) {
  const std::string what = "cannot write a checkpoint's manifest";
  if (!is_sha256_hex(manifest.state_hash) || !is_sha256_hex(manifest.file.sha256) ||
      !is_sha256_hex(manifest.job.job_sha256)) {
    return ErrorInfo{ErrorCode::kBadInput, what, "a hash in it is not 64 hexadecimal digits", ""};
  }
  try {
    auto text = encode_text(manifest);
    if (text.size() <= kMaxManifestBytes) return text;
  } catch (const json::exception&) {
    return ErrorInfo{ErrorCode::kBadInput, what, "a text in it is not valid UTF-8", ""};
  }
  return ErrorInfo{ErrorCode::kLimit, what,
                   "it takes more than " + std::to_string(kMaxManifestBytes) + " bytes",
                   "keep less metadata"};
}

Result<Manifest> decode_manifest(std::string_view name, std::span<const std::byte> bytes) {
  auto decoded = decode({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (decoded) return decoded;
  ErrorInfo error = decoded.error();
  error.what = "cannot use manifest '" + std::string(name) + "'";
  return error;
}

}  // namespace troupe::checkpoint
