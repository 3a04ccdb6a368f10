#include "runtime/package/manifest.hpp"

#include <set>
#include <string_view>

#include "runtime/core/escape.hpp"
#include "runtime/security/sha256.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxNameBytes = 255;

ErrorInfo bad(const std::string& why) {
  return {ErrorCode::kBadInput, "refused a job's package", why, "submit the job again"};
}

std::string named(const std::string& path) {
  return "'" + escape_name(path.substr(0, 200)) + "'";
}

}  // namespace

std::string wrong_package_path(const std::string& path) {
  if (path.empty()) return "it has an empty path";
  if (path.size() > kMaxPackagePathBytes)
    return "the path " + named(path) + " has " + std::to_string(path.size()) + " bytes, and " +
           std::to_string(kMaxPackagePathBytes) + " are the most";
  if (path[0] == '/') return "the path " + named(path) + " is absolute";
  if (path.find('\0') != std::string::npos) return "the path " + named(path) + " has a zero byte";
  for (std::string_view rest = path;;) {
    const auto end = rest.find('/');
    const std::string_view name = rest.substr(0, end);
    if (name == "..") return "the path " + named(path) + " leaves the package";
    if (name.empty() || name == "." || name.size() > kMaxNameBytes)
      return "the path " + named(path) + " has a part that is no name";
    if (end == std::string_view::npos) return "";
    rest = rest.substr(end + 1);
  }
}

ErrorInfo package_too_large(std::uint64_t bytes) {
  return {ErrorCode::kLimit, "refused a job's package",
          std::to_string(bytes) + " bytes are more than " + std::to_string(kMaxPackageTreeBytes),
          "leave data out: put it where every node reads it"};
}

Result<void> check_manifest(const PackageManifest& manifest) {
  if (manifest.entries.size() > kMaxPackageEntries)
    return ErrorInfo{ErrorCode::kLimit, "refused a job's package",
                     std::to_string(manifest.entries.size()) + " files and folders are more than " +
                         std::to_string(kMaxPackageEntries),
                     "leave some out, or pack them into one file"};
  std::set<std::string_view> folders;
  std::uint64_t total = 0;
  const PackageEntry* before = nullptr;
  for (const PackageEntry& entry : manifest.entries) {
    if (const std::string wrong = wrong_package_path(entry.path); !wrong.empty()) return bad(wrong);
    if (before != nullptr && before->path >= entry.path)
      return bad("the path " + named(entry.path) + " stands twice or out of order");
    before = &entry;
    const auto slash = entry.path.rfind('/');
    if (slash != std::string::npos && !folders.contains(std::string_view(entry.path).substr(0, slash)))
      return bad("the path " + named(entry.path) + " is below what is no folder");
    if (entry.kind == PackageEntry::Kind::kFolder) {
      folders.insert(entry.path);
      if (entry.bytes != 0 || !entry.sha256.empty())
        return bad("the folder " + named(entry.path) + " has contents of its own");
      continue;
    }
    if (!is_sha256_hex(entry.sha256)) return bad("the digest of " + named(entry.path) + " is none");
    if (entry.bytes > kMaxPackageTreeBytes) return package_too_large(entry.bytes);
    total += entry.bytes;
    if (total > kMaxPackageTreeBytes) return package_too_large(total);
  }
  return {};
}

PackageHead package_head(const PackageManifest& manifest) {
  const wire::Bytes body = wire::encode(manifest);
  PackageHead head;
  Sha256 digest;
  digest.update(body);
  head.id = digest.finish();
  wire::Writer writer;
  writer.append(kPackageMagic, kPackageMagicBytes);
  const auto size = static_cast<std::uint64_t>(body.size());
  writer.append(&size, sizeof size);
  head.bytes = writer.take("package");
  head.bytes.insert(head.bytes.end(), body.begin(), body.end());
  return head;
}

}  // namespace troupe
