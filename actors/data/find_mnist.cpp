#include "actors/data/find_mnist.hpp"

#include <cstdlib>

#include "actors/data/data_file.hpp"
#include "actors/data/idx_dataset.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

namespace fs = std::filesystem;

/// The names that `folder` lacks, joined by ", "; empty when it has MNIST.
std::string missing_files(const std::string& folder) {
  std::string missing;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const IdxStems stems = idx_stems(split);
    for (const auto& stem : {stems.images, stems.labels}) {
      if (!find_data_file(folder, stem).empty()) continue;
      if (!missing.empty()) missing += ", ";
      missing += stem + "[.gz]";
    }
  }
  return missing;
}

std::string absolute_text(const fs::path& path) {
  std::error_code failed;
  auto full = fs::weakly_canonical(path, failed);
  return failed ? path.string() : full.string();
}

std::vector<fs::path> candidates(const MnistSearch& search) {
  std::vector<fs::path> folders;
  if (!search.data_dir.empty()) {
    folders.push_back(fs::path(search.data_dir) / "mnist");
    folders.emplace_back(search.data_dir);
  }
  const auto shared = fs::path("shared") / "data" / "mnist";
  if (!search.working_dir.empty()) folders.push_back(search.working_dir / ".." / shared);
  constexpr int kLevels = 8;  // a build tree is not deeper; the root of the disk is nobody's project
  fs::path at = search.executable.parent_path();
  for (int level = 0; level < kLevels && at.has_relative_path(); ++level, at = at.parent_path()) {
    folders.push_back(at / shared);
  }
  return folders;
}

}  // namespace

MnistSearch default_mnist_search(std::string explicit_folder) {
  MnistSearch search;
  search.explicit_folder = std::move(explicit_folder);
  const char* folder = std::getenv("TROUPE_DATA_DIR");
  search.data_dir = folder == nullptr ? "" : folder;
  std::error_code ignored;  // a deleted working directory is one without data
  search.working_dir = fs::current_path(ignored);
  search.executable = fs::read_symlink("/proc/self/exe", ignored);
  return search;
}

FoundMnist find_mnist(const MnistSearch& search) {
  if (!search.explicit_folder.empty()) {
    const std::string missing = missing_files(search.explicit_folder);
    if (missing.empty()) return {absolute_text(search.explicit_folder), "the folder given by --data"};
    throw BadConfig("no MNIST in '" + search.explicit_folder + "'", "it lacks " + missing,
                    "put MNIST's IDX files there, or leave --data out to train on rendered digits");
  }
  std::string looked;
  for (const auto& folder : candidates(search)) {
    const std::string path = absolute_text(folder);
    if (missing_files(path).empty()) return {path, "found in " + path};
    if (looked.find("'" + path + "'") == std::string::npos)
      looked += (looked.empty() ? "'" : ", '") + path + "'";
  }
  return {"", "no MNIST in " + (looked.empty() ? "any known place" : looked)};
}

}  // namespace troupe::data
