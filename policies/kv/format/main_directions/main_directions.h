#pragma once

#include <cstdint>

namespace kvlab {

// Eigenvectors of the second moment of vectors [count, d], largest eigenvalue first: out [rank, d], rank <= d. In double precision.
void main_directions(const float* vectors, std::int64_t count, std::int32_t d, std::int32_t rank, float* out);

}  // namespace kvlab
