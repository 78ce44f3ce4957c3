#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "policies/kv/selector/signed_pages/signed_pages.h"

namespace kvlab {

namespace {

// Channels that count for a row, and where their values are in a page's bounds.
struct Channels {
  std::vector<std::int64_t> channel, place;
};

Channels choose_channels(const SignedPages& a, std::int32_t row, const float* q) {
  const auto d = static_cast<std::size_t>(a.head_dim);
  std::vector<float> size(d, 0.0F), sum(d, 0.0F);
  for (std::size_t h = 0; h < static_cast<std::size_t>(a.group); ++h)
    for (std::size_t c = 0; c < d; ++c) size[c] += std::abs(q[h * d + c]), sum[c] += q[h * d + c];
  Channels chosen;
  chosen.channel.resize(d);
  std::iota(chosen.channel.begin(), chosen.channel.end(), 0);
  std::stable_sort(chosen.channel.begin(), chosen.channel.end(),
                   [&](std::int64_t x, std::int64_t y) { return size[static_cast<std::size_t>(x)] > size[static_cast<std::size_t>(y)]; });
  chosen.channel.resize(static_cast<std::size_t>(a.channels[row]));
  for (const std::int64_t c : chosen.channel) chosen.place.push_back(c + (sum[static_cast<std::size_t>(c)] > 0 ? a.head_dim : 0));
  return chosen;
}

// Softmax of one head over the pages.
void weigh(const SignedPages& a, std::int32_t row, const float* q, const Channels& chosen, std::vector<float>& z) {
  float all = 0.0F, of_chosen = 0.0F;
  for (std::int32_t c = 0; c < a.head_dim; ++c) all += std::abs(q[c]);
  for (const std::int64_t c : chosen.channel) of_chosen += std::abs(q[c]);
  const float share = all > 0 ? of_chosen / all : 1.0F;
  const float scale = share > 0 ? 1.0F / std::sqrt(static_cast<float>(a.head_dim) * share) : 0.0F;
  for (std::size_t p = 0; p < z.size(); ++p) {
    const float* bounds = a.bounds[row] + static_cast<std::ptrdiff_t>(p) * 2 * a.head_dim;
    float sum = 0.0F;
    for (std::size_t i = 0; i < chosen.place.size(); ++i) sum += q[chosen.channel[i]] * bounds[chosen.place[i]];
    z[p] = scale * sum;
  }
  const float top = *std::max_element(z.begin(), z.end());
  float total = 0.0F;
  for (float& x : z) total += x = std::exp(x - top);
  for (float& x : z) x /= total;
}

void run_row(const SignedPages& a, std::int32_t row) {
  const std::int64_t begin = a.first[row], pages = (a.first[row + 1] - begin) / a.page_tokens;
  if (pages == 0) return;
  const std::int64_t d = a.head_dim;
  const Queries& queries = a.queries[row / a.kv_heads];
  const float* q = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + row % a.kv_heads) * a.group * d;
  const Channels chosen = choose_channels(a, row, q);
  std::vector<float> z(static_cast<std::size_t>(pages)), mean(z.size(), 0.0F);
  for (std::int64_t h = 0; h < a.group; ++h) {
    weigh(a, row, q + h * d, chosen, z);
    for (std::size_t p = 0; p < z.size(); ++p) mean[p] += z[p] / static_cast<float>(a.group);
  }
  for (std::size_t p = 0; p < z.size(); ++p)
    std::fill_n(a.scores + begin + static_cast<std::ptrdiff_t>(p) * a.page_tokens, a.page_tokens, mean[p]);
}

}  // namespace

void run_cpu(const SignedPages& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t row) { run_row(a, static_cast<std::int32_t>(row)); });
}

}  // namespace kvlab
