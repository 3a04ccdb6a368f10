#include "runtime/node/package_store.hpp"

#include <fcntl.h>

#include "runtime/core/log.hpp"

namespace troupe::node {

PartTaken PackageStore::take(const wire::PackagePart& part) {
  PackageDownload& download = coming_.try_emplace(part.hash, part.hash).first->second;
  PartTaken taken;
  taken.hash = part.hash;
  const auto fed = download.feed(part);
  if (fed) {
    taken.next = download.next().offset;
    taken.whole = *fed;
    if (*fed) whole_.insert_or_assign(part.hash, download.take());
  } else {
    taken.error = fed.error();
  }
  if (!fed || *fed) coming_.erase(part.hash);
  return taken;
}

wire::PackagePart PackageStore::read(const wire::PackageAsk& ask, bool own) {
  wire::PackagePart none{ask.hash, ask.offset, 0, {}};
  if (own && !own_) own_ = UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto at = whole_.find(ask.hash);
  const int fd = own ? own_.get() : at != whole_.end() ? at->second.get() : -1;
  if (fd < 0) return none;
  auto part = read_package_part(fd, ask);
  if (part) return *std::move(part);
  log(LogLevel::kError, part.error().message());
  return none;
}

void PackageStore::forget(const std::string& hash) {
  whole_.erase(hash);
  coming_.erase(hash);
}

Result<int> PackageStore::program(const std::string& hash, const std::string& own_hash) const {
  if (hash.empty() || hash == own_hash) return -1;
  const auto at = whole_.find(hash);
  if (at == whole_.end()) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot start a worker",
                     "the executable " + hash.substr(0, 12) + " is not here", "spawn it again"};
  }
  return at->second.get();
}

}  // namespace troupe::node
