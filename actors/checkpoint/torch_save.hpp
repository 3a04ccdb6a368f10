/// What PyTorch's torch.save wrote of a state_dict(), or of another dict of tensors by name, since release
/// 1.6: a zip archive that is not compressed, of
///
/// ```
/// NAME/data.pkl     a pickle: the dict, each tensor by its shape, strides, and place in a storage
/// NAME/data/KEY     the elements of a storage, little-endian
/// ```
/// A training program's checkpoint, a dict with the weights under "state_dict", "model_state_dict" or
/// "model", is read as those. Loading runs no code of the file's author, whatever the bytes: of the pickle's
/// calls those that make tensors and dicts are known, and what others would make is left out. Sources:
/// Python's pickletools, torch/serialization.py, and PKWARE's APPNOTE for the archive.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "actors/checkpoint/safetensors.hpp"

namespace troupe::checkpoint {

struct TorchSaved {
  std::vector<TensorView> tensors;             ///< in the dict's order
  std::vector<std::vector<std::byte>> copies;  ///< elements of those that do not lie row-major in the file
};

/// Whether it begins as such an archive does.
bool is_torch_save(std::span<const std::byte> file);
/// Whether it begins as what torch.save wrote before there were archives, a pickle, and cannot be a
/// safetensors file: read_torch_save() refuses it. The first 8 bytes tell.
bool is_old_torch_save(std::span<const std::byte> file);

/// Decodes a whole file, which must outlive what is returned. Total: errors (kCorrupt) name `name` and what
/// is wrong: no archive, a member that is missing, not there as a whole or damaged (CRC-32), a pickle that
/// ends early or has an operation that none of torch.save's has, a tensor outside of its storage or of an
/// unknown type, no dict of tensors, or copies that take far more memory than the file.
Result<TorchSaved> read_torch_save(std::string_view name, std::span<const std::byte> file);

}  // namespace troupe::checkpoint
