#pragma once

namespace kvlab {

// Repetitions scatter within the datasheet margin. A larger fall as work grows is another measurement's. Units differ by 1000, no large
// operation this far from its roofline.
inline constexpr double kDatasheetMargin = 1.02, kFallTolerance = 0.2, kUnitFactor = 300;

}  // namespace kvlab
