#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace kvlab {

// Andes (Liu et al. 2024, arXiv:2404.16283): requests by gain per token of context, and the size with the largest sum.
// Reading: a token per `token_ns` from `line_begins_ns` on (may be negative). Times are ns from now.
struct Reader {
  double line_begins_ns = 0;
  double token_ns = 1;
  std::int64_t delivered = 0;  // tokens
  [[nodiscard]] double lag_begins() const { return std::max(0.0, line_begins_ns + static_cast<double>(delivered) * token_ns); }
};

// QoE over `horizon_ns` with a token every `step_ns`, less that with none, as a share of the area below the reading line.
inline double gain_of_serving(const Reader& reader, double horizon_ns, double step_ns) {
  const double lag = reader.lag_begins();
  if (lag >= horizon_ns) return 0;
  const double whole = horizon_ns - reader.line_begins_ns;  // squared, over 2 token_ns: the area below the line
  // min(t / step, (t - lag) / token) from `lag` on; equal at `meet` if steps are slower.
  const double slow = step_ns - reader.token_ns;
  const double meet = slow > 0 ? std::min(horizon_ns, lag * step_ns / slow) : horizon_ns;
  const double tail = slow > 0 ? (horizon_ns * horizon_ns - meet * meet) * (reader.token_ns / step_ns) : 0;
  return ((meet - lag) * (meet - lag) + tail) / (whole * whole);
}

struct BatchCandidate {
  Reader reader;
  std::int64_t context_tokens = 1;  // > 0
  std::int64_t blocks = 0;
  bool is_chosen = false;
};

// Sets is_chosen of the best batch and returns its size. sizes: ascending. step_ns(b, context): step of b requests with `context` tokens in
// total. Ties: larger. Chooses at least one if any fits.
template <class StepNs>
std::size_t choose_batch(std::span<BatchCandidate> all, std::span<const std::int32_t> sizes, std::int64_t free_blocks, double horizon_ns,
                         StepNs&& step_ns) {
  std::int64_t context = 0;
  for (BatchCandidate& c : all) {
    context += c.context_tokens;
    c.is_chosen = false;
  }
  struct Ranked {
    double gain = 0, priority = 0;
    std::size_t index = 0;
  };
  std::vector<Ranked> ranked(all.size());
  std::vector<std::size_t> batch, best;
  double best_gain = -1;
  for (const std::int32_t size : sizes) {
    const double step = step_ns(size, context * size / std::max<std::int64_t>(1, static_cast<std::int64_t>(all.size())));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double gain = gain_of_serving(all[i].reader, horizon_ns, step);
      ranked[i] = {gain, gain / static_cast<double>(all[i].context_tokens), i};
    }
    std::sort(ranked.begin(), ranked.end(),
              [](const Ranked& a, const Ranked& b) { return a.priority != b.priority ? a.priority > b.priority : a.index < b.index; });
    std::int64_t left = free_blocks;
    double sum = 0;
    batch.clear();
    for (const Ranked& r : ranked) {
      if (batch.size() >= static_cast<std::size_t>(size)) break;
      if (all[r.index].blocks > left) continue;
      left -= all[r.index].blocks;
      sum += r.gain;
      batch.push_back(r.index);
    }
    if (batch.empty() || sum < best_gain || (sum == best_gain && batch.size() < best.size())) continue;
    best_gain = sum;
    best.swap(batch);
  }
  for (const std::size_t i : best) all[i].is_chosen = true;
  return best.size();
}

// Evenly spaced up to `most`, ascending.
inline std::vector<std::int32_t> batch_sizes(std::int32_t most, std::int32_t count) {
  std::vector<std::int32_t> sizes;
  for (std::int32_t i = 1; i <= count; ++i) {
    const auto size = static_cast<std::int32_t>(std::max<std::int64_t>(1, std::int64_t{most} * i / count));
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

// Least squares, older steps weighted less.
class ObservedSteps {
 public:
  void add(double requests, double step_ns) {
    constexpr double kKept = 0.98;
    for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kKept;
    weight_ += 1;
    x_ += requests;
    y_ += step_ns;
    xx_ += requests * requests;
    xy_ += requests * step_ns;
  }
  [[nodiscard]] bool is_empty() const { return weight_ == 0; }
  // At least a quarter of the mean; 0 without steps.
  [[nodiscard]] double step_ns(double requests) const {
    if (is_empty()) return 0;
    const double mean = y_ / weight_;
    const double spread = xx_ - x_ * x_ / weight_;
    if (spread < 1e-6 * xx_) return mean;
    const double slope = std::max(0.0, (xy_ - x_ * y_ / weight_) / spread);
    return std::max(mean / 4, mean + slope * (requests - x_ / weight_));
  }

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace kvlab
