#include "kernels/storage/page_copy/page_copy.h"

#include <algorithm>

namespace kvlab {

void run_cpu(const PageCopy& a) {
  for (std::int64_t i = 0; i < a.pages; ++i)
    if (a.from_page[i] >= 0 && a.to_page[i] >= 0)
      std::copy_n(a.from + a.from_page[i] * a.page_bytes, a.page_bytes, a.to + a.to_page[i] * a.page_bytes);
}

std::vector<PageRun> page_runs(const PageCopy& a) {
  std::vector<PageRun> runs;
  for (std::int64_t i = 0; i < a.pages; ++i) {
    if (a.from_page[i] < 0 || a.to_page[i] < 0) continue;
    if (!runs.empty() && runs.back().from + runs.back().count == a.from_page[i] && runs.back().to + runs.back().count == a.to_page[i])
      ++runs.back().count;
    else
      runs.push_back({a.from_page[i], a.to_page[i], 1});
  }
  return runs;
}

PageCopy::Method chosen_method(const PageCopy& a) {
  constexpr std::size_t kFewRuns = 2;
  constexpr std::int64_t kLongRun = 256 << 10;  // bytes: commands are a fifth of the time at most
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(a.from) | reinterpret_cast<std::uintptr_t>(a.to);
  if (a.method != PageCopy::Method::kAutomatic) return a.method;
  if (!a.lists_on_host) return PageCopy::Method::kKernel;
  if (bits % 16 != 0 || a.page_bytes % 16 != 0) return PageCopy::Method::kEngine;
  const std::vector<PageRun> runs = page_runs(a);
  std::int64_t pages = 0;
  for (const PageRun& run : runs) pages += run.count;
  const bool long_runs = pages * a.page_bytes >= static_cast<std::int64_t>(runs.size()) * kLongRun;
  return runs.size() <= kFewRuns || long_runs ? PageCopy::Method::kEngine : PageCopy::Method::kKernel;
}

}  // namespace kvlab
