#pragma once

#include <vector>

#include "kernels/storage/page_copy/page_copy.h"

namespace kvlab {

// Pages [from, from + count) become pages [to, to + count).
struct PageRun {
  std::int64_t from = 0, to = 0, count = 0;
};

// Neighbouring pages are joined; the lists are in CPU memory.
std::vector<PageRun> page_runs(const PageCopy& a);

}  // namespace kvlab
