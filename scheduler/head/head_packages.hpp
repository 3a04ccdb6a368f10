/// Packages of submitted jobs at the head: clients bring them, nodes fetch them. One is kept as long as a
/// record names it, or who brought it is connected: there is no timer that a slow client could lose against.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "runtime/node/event_loop.hpp"
#include "runtime/package/package_shelf.hpp"
#include "runtime/package/work_thread.hpp"

namespace troupe {

/// Everything runs in the loop's thread, but for the disk's part.
class HeadPackages {
 public:
  /// `folder`: empty for a head that takes none.
  HeadPackages(EventLoop& loop, std::string folder) : loop_(loop), shelf_(std::move(folder)) {}

  /// Drops what no record names. Errors: kIo.
  Result<void> open(const std::function<bool(const std::string& id)>& is_named);

  /// A piece of it, from `client`; `answer` is called in the loop.
  void put(const std::string& client, const wire::PackagePart& part,
           std::function<void(Result<wire::PackageHeld>)> answer);
  /// `give` is called in the loop, with a part of no bytes if it is not here, or the disk has spoilt it: then
  /// it is dropped, and who submits it again brings it.
  void read(const wire::PackageAsk& ask, std::function<void(wire::PackagePart)> give);
  /// Why no job can be submitted with that package; none: it is here.
  std::optional<ErrorInfo> is_missing(const std::string& id) const;
  /// What it brought is its no more.
  void client_went(const std::string& client);
  /// Drops what nobody holds and no record names. Call it now and then.
  void tick(const std::function<bool(const std::string& id)>& is_named);

 private:
  /// Follows whoever began last to fetch a package: what the disk has spoilt goes to nobody whole.
  struct Check {
    explicit Check(const std::string& id) : reader(id) {}
    PackageReader reader;
    std::uint64_t next = 0;
  };
  Result<wire::PackagePart> checked(Result<wire::PackagePart> part);
  void drop(const std::string& id);

  EventLoop& loop_;
  PackageShelf shelf_;                   ///< of work_'s thread, once it is open
  std::map<std::string, Check> checks_;  ///< of work_'s thread, too
  bool is_open_ = false;
  std::set<std::string> whole_;                           ///< as far as the loop has heard
  std::map<std::string, std::set<std::string>> holders_;  ///< clients, of each package that they asked about
  WorkThread work_;                                       ///< the last: it uses the others
};

}  // namespace troupe
