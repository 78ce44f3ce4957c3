#pragma once

namespace kvlab {

// Repetitions scatter by less than the margin on datasheet rates. A time that falls by more than the tolerance as work grows is another
// measurement's. Units differ by 1000, and no large operation is this far from its roofline.
inline constexpr double kDatasheetMargin = 1.02, kFallTolerance = 0.2, kUnitFactor = 300;

}  // namespace kvlab
