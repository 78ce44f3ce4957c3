#pragma once

#include "base/config/params.h"

namespace kvlab {

// Key for settings of figures. Not part of runs and their ids.
inline constexpr const char* kFigures = "figures";

// Checks `figures: {NAME: {size: [3.4, 2.4], ...}}` (docs/figures.md): keys, form of values, figure names and metrics; plots/ checks other
// names. Throws InputError with the place.
void check_figure_settings(Params experiment);

}  // namespace kvlab
