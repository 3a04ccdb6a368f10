/// The shared libraries that a program needs, as the loader of this machine finds them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe {

struct SharedLibrary {
  std::string name;  ///< as programs ask for it: libtorch.so
  std::string path;  ///< of its file
  /// It is asked for by its path, where the loader looks on every node, and nowhere else: it cannot travel.
  bool is_by_path = false;
};

/// Those that `program` needs: all but the C library's own, which belong to the kernel and the loader
/// of a machine, and the GPU driver's. None: it is linked statically. What it loads by itself (dlopen) nobody
/// can know. Errors: kBadInput (it is no ELF program, or a library is not found), kIo.
Result<std::vector<SharedLibrary>> libraries_of(const std::string& program);
/// The same from what the loader prints. Errors: kBadInput.
Result<std::vector<SharedLibrary>> read_loader_list(std::string_view text, const std::string& program);

}  // namespace troupe
