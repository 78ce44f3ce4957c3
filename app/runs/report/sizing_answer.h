#pragma once

#include <cstddef>
#include <string>

#include "base/csv.h"

namespace kvlab {

// For searches for fewest replicas or GPUs: sorts rows by attaining, price, then GPUs, and returns a line on the first. Otherwise, or for
// one row: "".
std::string put_answer_first(CsvTable& summary, std::size_t num_axes);

}  // namespace kvlab
