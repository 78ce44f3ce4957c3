#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/ceil_div.h"
#include "base/params.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

struct CostSetup;

// TokenWeave (Gond, Kwatra and Ramjee 2025, arXiv:2505.11329): under tensor parallelism a step's tokens are split into two halves, and the
// all-reduces of one half, with the norms that follow them, run while the other half computes. Its own settings: 1,024 tokens, tiles of
// 128 tokens, 2 to 8 SMs for the fused kernel (github.com/microsoft/tokenweave). The tile's columns are our assumption.
struct TokenWeaveRule {
  std::int64_t min_tokens = 1024;                      // of a step that may be split
  std::int64_t sms = 0, comm_sms = 8;                  // of the GPU; of it, those that the collective's kernel takes from the computation
  std::int64_t tile_tokens = 128, tile_columns = 128;  // of a product's result, which one SM computes
  bool wave_aware = true;                              // false: split in the middle

  [[nodiscard]] double slowdown() const { return static_cast<double>(sms) / static_cast<double>(sms - comm_sms); }
};

// Reads `overlap` of the mapping `parallel`; none: without. InputError: no tp, other parallelism beside it, or a card without `sms`.
std::optional<TokenWeaveRule> read_overlap(Params& parallel, const CostSetup& setup);

// `plain`, but for steps of min_tokens and more that take less time split. Steps are exact: a span of decode steps that may be split is one
// step long.
std::unique_ptr<CostModel> make_token_weave(std::unique_ptr<CostModel> plain, const CostSetup& setup);

// ---- the rule itself ----

// A matrix product of a layer on one rank.
struct WovenProduct {
  std::int64_t columns = 0;  // of its result
  double flops = 0;          // relative to those of the other products
  bool is_feed_forward = false;
};

// Number of times that all SMs compute a tile each until the product of these tokens is done.
constexpr std::int64_t waves(const TokenWeaveRule& rule, std::int64_t tokens, std::int64_t columns) {
  return ceil_div(ceil_div(tokens, rule.tile_tokens) * ceil_div(columns, rule.tile_columns), rule.sms);
}

// The two halves of a step. Waves: those of both halves over those of the whole step, the mean over products by their FLOPs.
struct TokenSplit {
  std::int64_t first = 0;  // tokens of the first half; 0: no split
  double attention_waves = 1, feed_forward_waves = 1;
};

inline TokenSplit split_at(const TokenWeaveRule& rule, std::int64_t tokens, std::int64_t first, std::span<const WovenProduct> products) {
  std::array<double, 2> flops{}, woven{};
  for (const WovenProduct& p : products) {
    const std::int64_t halves = waves(rule, first, p.columns) + waves(rule, tokens - first, p.columns);
    const std::size_t part = p.is_feed_forward ? 1 : 0;
    flops[part] += p.flops;
    woven[part] += p.flops * static_cast<double>(halves) / static_cast<double>(waves(rule, tokens, p.columns));
  }
  const auto mean = [&](std::size_t part) { return flops[part] > 0 ? woven[part] / flops[part] : 1; };
  return {first, mean(0), mean(1)};
}

// Wave aware: whole tiles, half of the tokens or up to two tiles more, with the fewest waves; the smallest of equal ones. So halves have
// the waves of the whole step, waves(T1) + waves(T2) = waves(T), wherever one of these splits does.
inline TokenSplit split_tokens(const TokenWeaveRule& rule, std::int64_t tokens, std::span<const WovenProduct> products) {
  if (!rule.wave_aware) return split_at(rule, tokens, tokens / 2, products);
  constexpr int kMoreTiles = 2;  // as in TokenWeave: 0, 128 or 256 tokens more, whichever was fastest
  const std::int64_t half = ceil_div(tokens, 2 * rule.tile_tokens) * rule.tile_tokens;
  double all = 0, feed_forward = 0;
  for (const WovenProduct& p : products) {
    all += p.flops;
    feed_forward += p.is_feed_forward ? p.flops : 0;
  }
  TokenSplit best;
  double fewest = 0;
  for (int more = 0; more <= kMoreTiles; ++more) {
    const std::int64_t first = half + more * rule.tile_tokens;
    if (first >= tokens) break;
    const TokenSplit split = split_at(rule, tokens, first, products);
    const double sum = (all - feed_forward) * split.attention_waves + feed_forward * split.feed_forward_waves;
    if (best.first == 0 || sum < fewest) best = split, fewest = sum;
  }
  return best;
}

// Times of one half over all layers, in picoseconds: computation beside the collective's kernel, and two collectives in each layer.
struct HalfTimes {
  double attention = 0, feed_forward = 0, collectives = 0;
};

// The time that both halves wait for collectives. In each layer attention of the first half runs beside the second's collective, that of
// the second beside the first's, then so the feed-forward parts. The first layer's attention has no collective beside it, and the last
// collective nothing to compute.
inline double exposed_ps(const std::array<HalfTimes, 2>& half, double layers) {
  const auto rest = [](double collective, double computation) { return std::max(0.0, collective - computation); };
  const double first = half[0].collectives / 2, second = half[1].collectives / 2;
  return rest(second, half[0].attention) * (layers - 1) / layers + rest(first, half[1].attention) + rest(second, half[0].feed_forward) +
         rest(first, half[1].feed_forward) + second / layers;
}

}  // namespace kvlab
