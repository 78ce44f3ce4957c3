#include <algorithm>
#include <deque>
#include <vector>

#include "policies/kv/prompt_rewriter/quota_select/quota_select.h"

namespace kvlab {

namespace {

// The largest of `width` neighbours of each score.
std::vector<float> largest_nearby(const float* scores, std::int32_t n, std::int32_t width) {
  std::vector<float> largest;
  std::deque<std::int32_t> falling;  // candidates of the window, their scores falling
  const std::int32_t half = width / 2;
  for (std::int32_t end = 0; end < n + half; ++end) {
    if (end < n) {
      while (!falling.empty() && scores[falling.back()] <= scores[end]) falling.pop_back();
      falling.push_back(end);
    }
    if (end < half) continue;
    while (falling.front() < end - 2 * half) falling.pop_front();
    largest.push_back(scores[falling.front()]);
  }
  return largest;
}

// Takes the `count` free tokens with the largest scores.
void take_largest(const std::vector<float>& scores, std::int32_t count, std::vector<bool>& taken) {
  std::vector<std::int32_t> free;
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (!taken[i]) free.push_back(static_cast<std::int32_t>(i));
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(free.begin(), free.begin() + count, free.end(), before);
  for (std::int32_t i = 0; i < count; ++i) taken[static_cast<std::size_t>(free[static_cast<std::size_t>(i)])] = true;
}

}  // namespace

void run_cpu(const QuotaSelect& a) {
  std::vector<bool> taken(static_cast<std::size_t>(a.tokens));
  for (std::int32_t i = 0; i < a.tokens; ++i) taken[static_cast<std::size_t>(i)] = i < a.first || i >= a.last_begin;
  auto left = a.kept - static_cast<std::int32_t>(std::count(taken.begin(), taken.end(), true));
  auto widths_left = static_cast<std::int32_t>(a.widths.size());
  for (const std::int32_t width : a.widths) {
    const std::int32_t quota = (left + widths_left - 1) / widths_left;
    take_largest(largest_nearby(a.scores, a.tokens, width), quota, taken);
    left -= quota, --widths_left;
  }
  std::int32_t* out = a.index;
  for (std::int32_t i = 0; i < a.tokens; ++i)
    if (taken[static_cast<std::size_t>(i)]) *out++ = i;
}

}  // namespace kvlab
