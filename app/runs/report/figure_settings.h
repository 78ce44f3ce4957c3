#pragma once

#include "base/config/params.h"

namespace kvlab {

// Not part of runs and their ids.
inline constexpr const char* kFigures = "figures";

// Checks `figures: {NAME: {size: [3.4, 2.4], ...}}` (docs/figures.md); plots/ checks other names. Throws InputError.
void check_figure_settings(Params experiment);

}  // namespace kvlab
