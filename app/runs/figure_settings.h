#pragma once

#include "base/params.h"

namespace kvlab {

// The key of an experiment for settings of its figures. They determine no result, so runs and their ids do not know them.
inline constexpr const char* kFigures = "figures";

// Checks the shape of `figures: {NAME: {size: [3.4, 2.4], ...}}`: known keys with values of the right form (docs/figures.md). Names of
// figures, metrics, axes and policies are checked by plots/, which knows them. InputError: anything wrong, with its place.
void check_figure_settings(Params experiment);

}  // namespace kvlab
