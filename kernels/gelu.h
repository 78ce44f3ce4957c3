#pragma once

#include <cmath>

#include "kernels/rows/team.h"

namespace kvlab {

// x (1 + erf(x / sqrt 2)) / 2
KVLAB_BODY inline float gelu(float x) { return 0.5F * x * (1.0F + std::erf(x * static_cast<float>(M_SQRT1_2))); }

}  // namespace kvlab
