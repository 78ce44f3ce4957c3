#include "sim/cost/skew_table.h"

#include <algorithm>
#include <utility>

namespace kvlab {

namespace {

constexpr int kEvenBucket = 0;  // equal lengths: no correction

bool is_even(const DecodeBatch& batch) { return batch.rows < 2 || batch.kv_max <= batch.kv_min; }

}  // namespace

std::size_t SkewAxis::bin(double value) const {
  const auto inner = edges.begin() + 1, last = edges.end() - 1;  // outer edges clamp
  return static_cast<std::size_t>(std::lower_bound(inner, last, value) - inner);
}

SkewTable::SkewTable(SkewAxis rows, SkewAxis skew, SkewAxis longest, SkewAxis before, double alpha_default, std::vector<Entry> entries)
    : axes_{std::move(rows), std::move(skew), std::move(longest), std::move(before)},
      alpha_default_(alpha_default),
      entries_(std::move(entries)) {
  for (const Entry& e : entries_) prompt_tokens_.push_back(e.prompt_tokens);
  std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
  prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()), prompt_tokens_.end());
  std::size_t cells = 1;
  for (const SkewAxis& axis : axes_) cells *= axis.labels.size();
  alpha_.assign(prompt_tokens_.size(), std::vector<double>(cells, std::clamp(alpha_default_, 0.0, 1.0)));
  for (const Entry& e : entries_) {
    const auto at =
        static_cast<std::size_t>(std::lower_bound(prompt_tokens_.begin(), prompt_tokens_.end(), e.prompt_tokens) - prompt_tokens_.begin());
    const std::size_t i =
        ((e.rows * axes_[1].labels.size() + e.skew) * axes_[2].labels.size() + e.longest) * axes_[3].labels.size() + e.before;
    alpha_[at][i] = std::clamp(e.alpha, 0.0, 1.0);
  }
}

std::size_t SkewTable::cell(const DecodeBatch& batch, std::size_t before_bin) const {
  // Profiles have two lengths with a share `skew` of long rows: var / (var + (max - mean)^2) for this mean, maximum and variance. Integers
  // keep an evenly growing batch's bucket.
  const Int128 variance = Int128{batch.rows} * batch.kv_squares - Int128{batch.kv_tokens} * batch.kv_tokens;
  const Int128 above = Int128{batch.rows} * batch.kv_max - batch.kv_tokens;
  const double skew = variance <= 0 ? 0 : static_cast<double>(variance) / static_cast<double>(variance + above * above);
  std::size_t i = axes_[0].bin(static_cast<double>(batch.rows));
  i = i * axes_[1].labels.size() + axes_[1].bin(std::clamp(skew, 0.0, 1.0));
  i = i * axes_[2].labels.size() + axes_[2].bin(static_cast<double>(batch.kv_max + 1));  // includes the new token
  return i * axes_[3].labels.size() + before_bin;
}

int SkewTable::bucket(const DecodeBatch& batch) const {
  if (is_even(batch)) return kEvenBucket;
  return kEvenBucket + 1 + static_cast<int>(cell(batch, axes_[3].bin(0)));
}

double SkewTable::alpha(int bucket) const {
  if (bucket == kEvenBucket) return 0;
  if (prompt_tokens_.empty() || prompt_tokens_.front() != 0) return std::clamp(alpha_default_, 0.0, 1.0);
  return alpha_.front()[static_cast<std::size_t>(bucket - kEvenBucket - 1)];
}

double SkewTable::mixed_alpha(const DecodeBatch& batch, std::int64_t prompt_tokens, double before) const {
  if (is_even(batch)) return 0;
  const auto at = std::lower_bound(prompt_tokens_.begin(), prompt_tokens_.end(), prompt_tokens);
  if (at == prompt_tokens_.end() || *at != prompt_tokens) return std::clamp(alpha_default_, 0.0, 1.0);
  return alpha_[static_cast<std::size_t>(at - prompt_tokens_.begin())][cell(batch, axes_[3].bin(before))];
}

}  // namespace kvlab
