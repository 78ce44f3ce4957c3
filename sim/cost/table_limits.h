#pragma once

namespace kvlab {

// Limits of measured tables. Repeats scatter by less than the margin on the datasheet's rates. A time that falls by more than the tolerance
// where the work grows is another measurement's. Units differ by 1000, and no operation is this far from its roofline at a large shape.
inline constexpr double kDatasheetMargin = 1.02, kFallTolerance = 0.2, kUnitFactor = 300;

}  // namespace kvlab
