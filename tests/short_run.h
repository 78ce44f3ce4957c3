#pragma once

#include <cstdlib>
#include <string>

namespace kvlab {

// With KVLAB_SHORT set, as under sanitizers, tests do less: cases that take minutes there are left out or made smaller.
inline bool short_run() { return std::getenv("KVLAB_SHORT") != nullptr; }
// KVLAB_SHORT=2: the shortest form, for modules whose sources have not changed for a day.
inline bool shortest_run() { return short_run() && std::string(std::getenv("KVLAB_SHORT")) == "2"; }
// With KVLAB_FULL set, tests do everything, also cases that repeat at larger sizes what smaller ones show.
inline bool full_run() { return std::getenv("KVLAB_FULL") != nullptr; }
// For tests that run for every recipe: true for two thirds of the names in a short run, for eight ninths in the shortest.
inline bool left_out_of_short_run(const std::string& name) { return short_run() && name.size() % (shortest_run() ? 9 : 3) != 0; }
inline constexpr const char* kLeftOut = "most names are left out with KVLAB_SHORT set";

}  // namespace kvlab
