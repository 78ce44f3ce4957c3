#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/ceil_div.h"
#include "base/config/params.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

struct CostSetup;

// TokenWeave (Gond, Kwatra and Ramjee 2025, arXiv:2505.11329): all-reduces and norms of one half of a step's tokens run while the other
// computes. Defaults are of github.com/microsoft/tokenweave, except tile_columns, our assumption.
struct TokenWeaveRule {
  std::int64_t min_tokens = 1024;                      // to split
  std::int64_t sms = 0, comm_sms = 8;                  // of the GPU; for collectives
  std::int64_t tile_tokens = 128, tile_columns = 128;  // result tile of one SM
  bool wave_aware = true;                              // false: split in the middle

  [[nodiscard]] double slowdown() const { return static_cast<double>(sms) / static_cast<double>(sms - comm_sms); }
};

// `overlap` of `parallel`; nullopt if absent. Throws InputError without tp, with other parallelism, or without `sms`.
std::optional<TokenWeaveRule> read_overlap(Params& parallel, const CostSetup& setup);

// Steps of at least min_tokens are split if that is faster. Exact: such spans have one step.
std::unique_ptr<CostModel> make_token_weave(std::unique_ptr<CostModel> plain, const CostSetup& setup);

struct WovenProduct {
  std::int64_t columns = 0;
  double flops = 0;
  bool is_feed_forward = false;
};

// Rounds of one tile per SM.
constexpr std::int64_t waves(const TokenWeaveRule& rule, std::int64_t tokens, std::int64_t columns) {
  return ceil_div(ceil_div(tokens, rule.tile_tokens) * ceil_div(columns, rule.tile_columns), rule.sms);
}

// Waves: both halves' over the whole step's, mean over products by FLOPs.
struct TokenSplit {
  std::int64_t first = 0;  // tokens; 0: no split
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

// If wave aware: half the tokens in whole tiles, or up to two tiles more, with the fewest waves, then tokens. Keeps waves(T1) + waves(T2) =
// waves(T) if possible.
inline TokenSplit split_tokens(const TokenWeaveRule& rule, std::int64_t tokens, std::span<const WovenProduct> products) {
  if (!rule.wave_aware) return split_at(rule, tokens, tokens / 2, products);
  constexpr int kMoreTiles = 2;  // as in TokenWeave: the fastest of 0, 128 or 256 more tokens
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

// Picoseconds over all layers; computation next to collectives; two collectives per layer.
struct HalfTimes {
  double attention = 0, feed_forward = 0, collectives = 0;
};

// Both halves wait. Per layer, attention of one half overlaps the other's collective, first half first; then feed-forward. The first
// layer's attention and the last collective overlap nothing.
inline double exposed_ps(const std::array<HalfTimes, 2>& half, double layers) {
  const auto rest = [](double collective, double computation) { return std::max(0.0, collective - computation); };
  const double first = half[0].collectives / 2, second = half[1].collectives / 2;
  return rest(second, half[0].attention) * (layers - 1) / layers + rest(first, half[1].attention) + rest(second, half[0].feed_forward) +
         rest(first, half[1].feed_forward) + second / layers;
}

}  // namespace kvlab
