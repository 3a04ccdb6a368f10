#include "actors/data/digits.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "actors/data/digit_glyphs.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"

namespace troupe::data {
namespace {

constexpr double kSide = Digits::kSide;
using Canvas = std::array<float, static_cast<std::size_t>(Digits::kSide) * Digits::kSide>;

double between(SeededRandom& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

/// Glyph box to pixels: scale, slant, turn, shift.
struct Warp {
  double xx, xy, yx, yy, dx, dy;

  GlyphPoint operator()(GlyphPoint p) const {
    const double x = p.x - 0.5;
    const double y = p.y - 0.5;
    return {kSide / 2 + dx + xx * x + xy * y, kSide / 2 + dy + yx * x + yy * y};
  }
};

Warp random_warp(SeededRandom& random) {
  const double width = between(random, 11.0, 19.0);
  const double height = between(random, 15.0, 22.0);
  const double slant = between(random, -0.4, 0.4);
  // A rotation from the tangent of half its angle: up to 25 degrees, without sin and cos, whose last bit
  // differs between C libraries.
  const double t = between(random, -0.22, 0.22);
  const double cosine = (1 - t * t) / (1 + t * t);
  const double sine = 2 * t / (1 + t * t);
  Warp warp{};
  warp.xx = cosine * width;
  warp.xy = (-cosine * slant - sine) * height;
  warp.yx = sine * width;
  warp.yy = (-sine * slant + cosine) * height;
  warp.dx = between(random, -3.0, 3.0);
  warp.dy = between(random, -2.5, 2.5);
  return warp;
}

/// The pen's path in pixels: the stroke's points displaced, warped and joined.
std::vector<GlyphPoint> path_of(const GlyphStroke& stroke, const Warp& warp, double wobble,
                                SeededRandom& random) {
  std::vector<GlyphPoint> points;
  for (const auto& point : stroke.points) {
    const double x = point.x + between(random, -wobble, wobble);
    const double y = point.y + between(random, -wobble, wobble);
    points.push_back(warp({x, y}));
  }
  if (!stroke.smooth) return points;
  constexpr int kPieces = 5;
  std::vector<GlyphPoint> path{points.front()};
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    const auto a = points[i == 0 ? 0 : i - 1];
    const auto b = points[i];
    const auto c = points[i + 1];
    const auto d = points[std::min(i + 2, points.size() - 1)];
    for (int piece = 1; piece <= kPieces; ++piece) {
      const double u = static_cast<double>(piece) / kPieces;
      const auto blend = [u](double p, double q, double r, double s) {
        return 0.5 * (2 * q + (r - p) * u + (2 * p - 5 * q + 4 * r - s) * u * u +
                      (3 * q - p - 3 * r + s) * u * u * u);
      };
      path.push_back({blend(a.x, b.x, c.x, d.x), blend(a.y, b.y, c.y, d.y)});
    }
  }
  return path;
}

/// The pixel that holds a coordinate, clamped to the canvas.
int pixel_at(double at) {
  return static_cast<int>(std::clamp(at, 0.0, kSide));
}

/// Inks the pixels within `radius` of the segment, with soft edges one pixel wide.
void draw_segment(Canvas& canvas, GlyphPoint a, GlyphPoint b, double radius, double ink) {
  const double reach = radius + 1;
  const double limit2 = (radius + 0.5) * (radius + 0.5);
  const double ux = b.x - a.x;
  const double uy = b.y - a.y;
  const double inverse = 1 / std::max(ux * ux + uy * uy, 1e-12);
  const int right = std::min(pixel_at(std::max(a.x, b.x) + reach), Digits::kSide - 1);
  const int bottom = std::min(pixel_at(std::max(a.y, b.y) + reach), Digits::kSide - 1);
  for (int y = pixel_at(std::min(a.y, b.y) - reach); y <= bottom; ++y) {
    for (int x = pixel_at(std::min(a.x, b.x) - reach); x <= right; ++x) {
      const double px = x + 0.5 - a.x;
      const double py = y + 0.5 - a.y;
      const double along = std::clamp((px * ux + py * uy) * inverse, 0.0, 1.0);
      const double ex = px - along * ux;
      const double ey = py - along * uy;
      const double distance2 = ex * ex + ey * ey;
      if (distance2 >= limit2) continue;
      const double cover = std::min(radius + 0.5 - std::sqrt(distance2), 1.0);
      auto& pixel = canvas[static_cast<std::size_t>(y) * Digits::kSide + static_cast<std::size_t>(x)];
      pixel = std::max(pixel, static_cast<float>(ink * cover));
    }
  }
}

void draw_path(Canvas& canvas, const std::vector<GlyphPoint>& path, double radius, double ink) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) draw_segment(canvas, path[i], path[i + 1], radius, ink);
}

/// A scratch of the pen somewhere on the paper.
void draw_scratch(Canvas& canvas, SeededRandom& random) {
  const GlyphPoint from{between(random, 0, kSide), between(random, 0, kSide)};
  const GlyphPoint to{from.x + between(random, -7, 7), from.y + between(random, -7, 7)};
  draw_segment(canvas, from, to, between(random, 0.4, 0.9), between(random, 0.4, 1.0));
}

}  // namespace

Digits::Digits(Split split, DigitsOptions options)
    : normalizer_(Normalize{options.mean, options.std}),
      size_(options.size != 0 ? options.size : (split == Split::kTrain ? 60'000 : 10'000)),
      stream_(mix(mix(0x646967697473, options.seed), static_cast<std::uint64_t>(split))) {
  if (size_ < 0) {
    throw BadConfig("cannot render " + std::to_string(size_) + " digits", "the size is negative",
                    "give a positive size, or 0 for MNIST's");
  }
}

std::int64_t Digits::render(std::int64_t index, Image& image) const {
  TROUPE_ASSERT(index >= 0 && index < size_, "a sample index lies within the dataset");
  SeededRandom random(mix(stream_, static_cast<std::uint64_t>(index)));
  const auto digit = static_cast<int>(random.below(10));
  const auto ways = glyphs_of(digit);
  const Glyph& glyph = ways[random.below(ways.size())];
  const Warp warp = random_warp(random);
  const double wobble = between(random, 0.01, 0.055);
  const double radius = between(random, 0.7, 1.7);
  const double ink = between(random, 0.6, 1.0);
  Canvas canvas{};
  for (const auto& stroke : glyph) draw_path(canvas, path_of(stroke, warp, wobble, random), radius, ink);
  constexpr double kScratched = 0.2;  // of the samples
  if (random.uniform() < kScratched) draw_scratch(canvas, random);
  const auto noise = static_cast<std::uint32_t>(between(random, 0, 45));
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < image.size(); ++i) {
    bits = i % 8 == 0 ? random.next() : bits >> 8;
    const auto grain = static_cast<float>((bits & 0xff) * noise >> 8);
    image[i] = static_cast<std::uint8_t>(std::min(canvas[i] * 255.0F + grain, 255.0F));
  }
  return digit;
}

void Digits::write(std::int64_t index, troupe::data::Random& /*random*/,
                   std::span<const std::span<std::byte>> places) const {
  Image image;
  write_target(places, render(index, image));
  normalizer_.apply(std::span<const std::uint8_t>(image), input_place(places));
}

}  // namespace troupe::data
