#include "policies/kv/allocator/split_total.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

namespace {

double usable(double weight) { return std::isfinite(weight) && weight > 0 ? weight : 0; }

// Adds `amount` (may be below 0) by `weights`, cumulatively rounded, within the bounds. Returns the rest.
std::int64_t place(std::span<const double> weights, std::int64_t amount, std::span<const std::int32_t> floor,
                   std::span<const std::int32_t> cap, std::span<std::int32_t> counts) {
  double sum = 0;
  for (const double w : weights) sum += w;
  double before = 0;
  std::int64_t placed = 0, asked = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    before += weights[i];
    const auto upto = static_cast<std::int64_t>(std::llround(static_cast<double>(amount) * before / sum));
    const std::int64_t wanted = counts[i] + upto - asked;
    const auto now = static_cast<std::int32_t>(std::clamp<std::int64_t>(wanted, floor[i], cap[i]));
    placed += now - counts[i];
    counts[i] = now;
    asked = upto;
  }
  return amount - placed;
}

}  // namespace

void split_total(std::span<const double> weights, std::int64_t total, std::span<const std::int32_t> floor,
                 std::span<const std::int32_t> cap, Excess excess, std::span<std::int32_t> counts) {
  if (counts.empty()) return;
  std::vector<double> w(weights.size()), open(weights.size());
  std::transform(weights.begin(), weights.end(), w.begin(), usable);
  if (std::all_of(w.begin(), w.end(), [](double x) { return x == 0; })) std::fill(w.begin(), w.end(), 1.0);
  std::fill(counts.begin(), counts.end(), 0);
  std::int64_t rest = place(w, total, floor, cap, counts);
  // Every round fills at least one member, or places the rest.
  for (std::size_t round = 0; excess != Excess::kLost && rest != 0 && round < 2 * counts.size(); ++round) {
    bool any = false;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const bool has_room = rest > 0 ? counts[i] < cap[i] : counts[i] > floor[i];
      open[i] = !has_room ? 0 : excess == Excess::kEven ? 1 : std::max(w[i], 1e-12);
      any |= has_room;
    }
    if (!any) return;
    rest = place(open, rest, floor, cap, counts);
  }
}

std::vector<double> softmax_of_negative(std::span<const double> x, double temperature) {
  std::vector<double> weights(x.begin(), x.end());
  const double least = x.empty() ? 0 : *std::min_element(x.begin(), x.end());
  for (double& w : weights) w = std::exp(-(w - least) / temperature);
  return weights;
}

void share_out(Ops& ops, std::span<const std::vector<double>> weights, const std::int64_t* total, const std::int32_t* floor,
               const std::int32_t* cap, Excess excess, std::int32_t* counts) {
  const std::size_t members = weights.empty() ? 0 : weights.front().size();
  const auto sequences = std::ssize(weights), n = sequences * static_cast<std::int64_t>(members);
  const auto split = [&] {
    for (std::size_t s = 0, at = 0; s < weights.size() && ops.computes(); ++s, at += members)
      split_total(weights[s], total[s], {floor + at, members}, {cap + at, members}, excess, {counts + at, members});
  };
  ops.timed({.op = "share_out", .rows = sequences, .outputs = n, .bytes = 16 * n, .flops = 8 * n}, split, true);
}

}  // namespace kvlab
