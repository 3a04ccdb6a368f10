#include "runtime/node/job_libraries.hpp"

#include "runtime/wire/package_name.hpp"

namespace troupe::node {
namespace {

/// Unpacks all of it: the libraries are a folder in there.
UnpackJob unpack(const std::string& package) {
  cluster::SubmissionSpec spec;
  spec.id = kLibrariesOf + package;
  spec.program = {"-"};
  spec.package = package;
  return {std::move(spec)};
}

}  // namespace

bool JobLibraries::need(const std::string& program, Actions& out) {
  const std::string package = wire::libraries_in(program);
  if (package.empty() || here_.contains(package) || locals_.any_driver_has_libraries(package)) return true;
  if (coming_.insert(package).second) out.push_back(unpack(package));
  return false;
}

JobLibraries::Done JobLibraries::failed(const std::string& package, const ErrorInfo& error) {
  coming_.erase(package);
  return {package, ErrorInfo{error.code, "cannot get the job's libraries", error.why, error.todo}};
}

std::optional<JobLibraries::Done> JobLibraries::unpacked(const JobUnpacked& e, Instant now, Actions& out) {
  const std::string package = e.id.substr(std::string_view(kLibrariesOf).size());
  if (!coming_.contains(package)) return std::nullopt;
  if (e.is_missing) {
    packages_.want(package, now, out);
    return std::nullopt;
  }
  if (e.error) return failed(package, *e.error);
  coming_.erase(package);
  trim(out);
  here_.insert(package);
  return Done{package, std::nullopt};
}

std::optional<JobLibraries::Done> JobLibraries::fetched(const JobPackages::Done& done, Actions& out) {
  if (done.error) return failed(done.package, *done.error);
  out.push_back(unpack(done.package));
  return std::nullopt;
}

std::optional<JobLibraries::Done> JobLibraries::part(const HeadGavePart& e, Instant now, Actions& out) {
  const auto done = packages_.part(e.part, now, out);
  return done ? fetched(*done, out) : std::nullopt;
}

std::optional<JobLibraries::Done> JobLibraries::taken(const JobPartTaken& e, Instant now, Actions& out) {
  const auto done = packages_.taken(e, now, out);
  return done ? fetched(*done, out) : std::nullopt;
}

std::vector<JobLibraries::Done> JobLibraries::tick(Instant now, Duration slip, bool head_is_up,
                                                   Actions& out) {
  std::vector<Done> all;
  for (const auto& done : packages_.tick(now, slip, head_is_up, out)) {
    if (auto ended = fetched(done, out)) all.push_back(*std::move(ended));
  }
  return all;
}

void JobLibraries::trim(Actions& out) {
  for (auto at = here_.begin(); at != here_.end() && here_.size() >= self_.limits.packages;) {
    if (locals_.any_has_libraries(*at)) {
      ++at;
    } else {
      out.push_back(RemoveJobFiles{kLibrariesOf + *at});
      at = here_.erase(at);
    }
  }
}

}  // namespace troupe::node
