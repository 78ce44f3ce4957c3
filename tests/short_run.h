#pragma once

#include <cstdlib>

namespace kvlab {

// With KVLAB_SHORT set, as under sanitizers, tests do less: what takes minutes there is left out or made smaller.
inline bool short_run() { return std::getenv("KVLAB_SHORT") != nullptr; }

}  // namespace kvlab
