#pragma once

#include <vector>

#include "kernels/page_copy/page_copy.h"

namespace kvlab {

// Pages [from, from + count) that become pages [to, to + count).
struct PageRun {
  std::int64_t from = 0, to = 0, count = 0;
};

// What the lists, in host memory, ask for, neighbours joined.
std::vector<PageRun> page_runs(const PageCopy& a);

}  // namespace kvlab
