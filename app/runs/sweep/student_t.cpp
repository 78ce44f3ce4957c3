#include "app/runs/sweep/student_t.h"

#include <array>

namespace kvlab {

namespace {

// Degrees 1 to 30.
constexpr std::array<double, 30> kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                             2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                             2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};

}  // namespace

double student_t_975(std::size_t degrees) {
  if (degrees <= kStudent.size()) return kStudent[degrees - 1];
  return 1.96 + 2.46 / static_cast<double>(degrees);  // error < 0.002
}

}  // namespace kvlab
