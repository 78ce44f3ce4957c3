#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>

namespace kvlab {

// The chosen command: prints its results to `out`, progress and warnings to `err`, and returns the exit status.
using Command = std::function<int(std::ostream& out, std::ostream& err)>;

// The range of 'seed' in an experiment. An unsigned option alone would take -1 for 2^64 - 1.
inline CLI::Range seed_range() { return {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}; }

}  // namespace kvlab
