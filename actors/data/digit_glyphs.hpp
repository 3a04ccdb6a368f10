/// The shapes of the ten digits as strokes of a pen.
#pragma once

#include <span>
#include <vector>

namespace troupe::data {

/// A point of a glyph's box: x to the right, y down, both mostly in [0, 1].
struct GlyphPoint {
  double x = 0;
  double y = 0;
};

/// One movement of the pen through its points: along a smooth curve (Catmull-Rom) or straight from each to
/// the next.
struct GlyphStroke {
  bool smooth = true;
  std::vector<GlyphPoint> points;
};

/// One way to write a digit.
using Glyph = std::vector<GlyphStroke>;

/// The ways in which `digit` is written, at least one. REQUIRES: 0 <= digit <= 9. Thread-safe.
std::span<const Glyph> glyphs_of(int digit);

}  // namespace troupe::data
