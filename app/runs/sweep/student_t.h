#pragma once

#include <cstddef>

namespace kvlab {

// 97.5 % quantile of Student's t with n degrees of freedom, n >= 1.
double student_t_975(std::size_t degrees);

}  // namespace kvlab
