#pragma once

#include <cstdlib>
#include <string>

namespace kvlab {

// With KVLAB_SHORT set, as under sanitizers, tests do less: what takes minutes there is left out or made smaller.
inline bool short_run() { return std::getenv("KVLAB_SHORT") != nullptr; }
// Of tests that run for every recipe: true for two thirds of the names in such a run.
inline bool left_out_of_short_run(const std::string& name) { return short_run() && name.size() % 3 != 0; }
inline constexpr const char* kLeftOut = "two thirds of the names are left out with KVLAB_SHORT set";

}  // namespace kvlab
