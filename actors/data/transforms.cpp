#include "actors/data/transforms.hpp"

#include <algorithm>
#include <cstring>

#include "actors/data/pixels.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

/// The extents of an image.
struct Extents {
  std::size_t channels = 0, height = 0, width = 0;
  std::size_t element = 0;  ///< bytes
  std::size_t row() const { return width * element; }
};

Extents extents_of(const Tensor& image, const char* what) {
  if (image.dimensions() != 3) {
    throw BadConfig(std::string("cannot ") + what, "the tensor " + to_string(image.shape()) + " is no image",
                    "give images as [channels, height, width]");
  }
  const auto& s = image.shape();
  return {static_cast<std::size_t>(s[0]), static_cast<std::size_t>(s[1]), static_cast<std::size_t>(s[2]),
          collectives::element_size(image.dtype())};
}

/// (a, b, c) of the channels, each `count` elements.
template <class T>
void normalize_channels(const std::vector<PixelNormalizer>& channels, std::span<const T> from,
                        std::span<float> to) {
  const std::size_t each = from.size() / channels.size();
  for (std::size_t c = 0; c < channels.size(); ++c)
    channels[c].apply(from.subspan(c * each, each), to.subspan(c * each, each));
}

/// Elements of a byte, eight at a time.
void reverse_rows_of_bytes(const std::byte* from, std::byte* to, std::size_t rows, std::size_t width) {
  for (std::size_t r = 0; r < rows; ++r, from += width, to += width) {
    std::size_t at = 0;
    for (; at + sizeof(std::uint64_t) <= width; at += sizeof(std::uint64_t)) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, from + width - at - sizeof eight, sizeof eight);
      eight = __builtin_bswap64(eight);
      std::memcpy(to + at, &eight, sizeof eight);
    }
    for (; at < width; ++at) to[at] = from[width - 1 - at];
  }
}

template <std::size_t kBytes>
void reverse_rows(const std::byte* from, std::byte* to, std::size_t rows, std::size_t width) {
  struct Element {
    std::array<std::byte, kBytes> bytes;
  };
  for (std::size_t r = 0; r < rows; ++r) {
    const auto* in = reinterpret_cast<const Element*>(from) + r * width;
    std::reverse_copy(in, in + width, reinterpret_cast<Element*>(to) + r * width);
  }
}

}  // namespace

Transform normalize(std::vector<float> mean, std::vector<float> std) {
  if (mean.size() != std.size() || mean.empty()) {
    throw BadConfig("cannot normalise pixels",
                    std::to_string(mean.size()) + " means and " + std::to_string(std.size()) + " stds",
                    "give one mean and one std a channel");
  }
  std::vector<PixelNormalizer> normalizers;
  for (std::size_t c = 0; c < mean.size(); ++c) normalizers.emplace_back(Normalize{mean[c], std[c]});
  return [normalizers = std::move(normalizers)](const Tensor& image, Random&) {
    const auto at = extents_of(image, "normalise");
    if (normalizers.size() != 1 && normalizers.size() != at.channels) {
      throw BadConfig("cannot normalise an image of " + std::to_string(at.channels) + " channels",
                      "there are " + std::to_string(normalizers.size()) + " means", "give one a channel");
    }
    auto made = Tensor::uninitialised(DType::kFloat32, image.shape());
    if (image.dtype() == DType::kUInt8) {
      normalize_channels(normalizers, image.values<std::uint8_t>(), made.fill<float>());
    } else {
      normalize_channels(normalizers, image.values<float>(), made.fill<float>());
    }
    return made;
  };
}

Transform random_crop(std::int64_t size, CropOptions options) {
  constexpr std::int64_t kLargest = 1 << 20;
  if (size < 1 || size > kLargest || options.padding < 0 || options.padding > kLargest) {
    throw BadConfig(
        "cannot crop to " + std::to_string(size) + " with a padding of " + std::to_string(options.padding),
        "a size is at least 1, a padding at least 0", "");
  }
  return [size, padding = options.padding](const Tensor& image, Random& random) {
    const auto at = extents_of(image, "crop");
    const auto height = static_cast<std::int64_t>(at.height);
    const auto width = static_cast<std::int64_t>(at.width);
    if (height + 2 * padding < size || width + 2 * padding < size) {
      throw BadConfig("cannot crop " + to_string(image.shape()) + " to " + std::to_string(size),
                      "with a padding of " + std::to_string(padding) + " it is smaller", "");
    }
    // Where the crop begins in the image: negative in the padding.
    const auto place = [&](std::int64_t extent) {
      const auto ways = static_cast<std::uint64_t>(extent + 2 * padding - size + 1);
      return static_cast<std::int64_t>(random.below(ways)) - padding;
    };
    const std::int64_t top = place(height);
    const std::int64_t left = place(width);
    auto made = Tensor(image.dtype(), {image.shape()[0], size, size});
    const std::int64_t from_x = std::max<std::int64_t>(left, 0);
    const std::int64_t to_x = std::min(left + size, width);
    if (from_x >= to_x) return made;
    const std::size_t bytes = static_cast<std::size_t>(to_x - from_x) * at.element;
    const std::byte* from = image.bytes().data();
    std::byte* to = made.fill_bytes().data();
    for (std::int64_t c = 0; c < image.shape()[0]; ++c) {
      for (std::int64_t y = std::max<std::int64_t>(top, 0); y < std::min(top + size, height); ++y) {
        std::memcpy(to + static_cast<std::size_t>((c * size + y - top) * size + from_x - left) * at.element,
                    from + static_cast<std::size_t>((c * height + y) * width + from_x) * at.element, bytes);
      }
    }
    return made;
  };
}

Transform random_horizontal_flip(double p) {
  if (!(p >= 0 && p <= 1))
    throw BadConfig("cannot flip with probability " + std::to_string(p), "it is outside [0, 1]", "");
  return [p](Tensor image, Random& random) {
    const auto at = extents_of(image, "flip");
    if (random.uniform() >= p) return image;
    auto made = Tensor::uninitialised(image.dtype(), image.shape());
    const auto* from = image.bytes().data();
    auto* to = made.fill_bytes().data();
    const std::size_t rows = at.channels * at.height;
    if (at.element == 1) reverse_rows_of_bytes(from, to, rows, at.width);
    if (at.element == 2) reverse_rows<2>(from, to, rows, at.width);
    if (at.element == 4) reverse_rows<4>(from, to, rows, at.width);
    if (at.element == 8) reverse_rows<8>(from, to, rows, at.width);
    return made;
  };
}

Transform compose(std::vector<Transform> transforms) {
  return [transforms = std::move(transforms)](Tensor value, Random& random) {
    for (const auto& transform : transforms) value = transform(std::move(value), random);
    return value;
  };
}

}  // namespace troupe::data
