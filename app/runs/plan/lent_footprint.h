#pragma once

#include <functional>
#include <memory>

#include "policies/kv/footprint.h"

namespace kvlab {

// Reuses released footprints with their cached results. `make`'s results must depend only on arguments. Thread-safe: each footprint has one
// user at a time.
std::function<std::unique_ptr<Footprint>()> lending(std::function<std::unique_ptr<Footprint>()> make);

}  // namespace kvlab
