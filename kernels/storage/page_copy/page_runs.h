#pragma once

#include <vector>

#include "kernels/storage/page_copy/page_copy.h"

namespace kvlab {

// Pages [from, from + count) that become pages [to, to + count).
struct PageRun {
  std::int64_t from = 0, to = 0, count = 0;
};

// Page runs of the lists, which are in CPU memory; neighbouring pages are joined.
std::vector<PageRun> page_runs(const PageCopy& a);

}  // namespace kvlab
