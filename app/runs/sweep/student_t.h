#pragma once

#include <cstddef>

namespace kvlab {

// 97.5 % quantile of Student's t; degrees >= 1.
double student_t_975(std::size_t degrees);

}  // namespace kvlab
