#pragma once

#include <iosfwd>
#include <string>

#include "app/runs/experiment.h"

namespace kvlab {

// Keeps the first seed alone of every simulation in which nothing is random: a recorded trace as it is, and no dispatcher that draws. With
// another seed it would be the same run. Returns a remark on dropped seeds, "" if none was dropped. Experiments that run an engine keep
// every seed, since each of its runs measures time anew. err: gets the progress where it takes long.
std::string drop_idle_seeds(Experiment& experiment, std::ostream* err = nullptr, bool is_terminal = false);

}  // namespace kvlab
