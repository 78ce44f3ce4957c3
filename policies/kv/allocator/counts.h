#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/params.h"
#include "policies/kv/part.h"

namespace kvlab {

// Every head of sequence s keeps `tokens`, or all it holds where that is less.
inline void keep_alike(ScoredLayer& layer, std::int32_t s, std::int64_t tokens) {
  const std::int32_t row = s * layer.kv.kv_heads;
  for (std::int32_t r = row; r < row + layer.kv.kv_heads; ++r)
    layer.keep[r] = static_cast<std::int32_t>(std::clamp<std::int64_t>(tokens, 0, layer.kv.len[r]));
}

// Most tokens that a head of sequence s holds.
inline std::int32_t longest_row(const KvRows& kv, std::int32_t s) {
  const std::int32_t* len = kv.len + s * kv.kv_heads;
  return *std::max_element(len, len + kv.kv_heads);
}

inline std::span<std::int32_t> all_counts(const ScoredLayer& layer) { return {layer.keep, static_cast<std::size_t>(layer.kv.num_rows)}; }

// Tokens that some rows could not take go to rows with room, in equal parts, until the counts sum to `total` or all rows are full.
void pass_on(std::span<std::int32_t> counts, std::span<const std::int32_t> len, std::int64_t total);

// A share of `held` tokens of several rows, rounded once as in kvpress: the share that goes rounded down, or the share that stays, at least
// one token.
inline std::int64_t left_of(std::int64_t held, double dropped_frac) {
  return held - static_cast<std::int64_t>(static_cast<double>(held) * dropped_frac);
}
inline std::int64_t kept_of(std::int64_t held, double frac) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(held) * frac));
}

// Tokens of head `head` in a layer whose KV heads keep these shares of n tokens, as LU-KV rounds them, in float32: the layer keeps its
// rounded sum, and what is left after rounding down goes to the heads with the largest remainders, one token each. At least one token.
std::int32_t tokens_by_remainder(std::span<const float> shares, std::int32_t head, std::int32_t n);

// A value for a layer, or for one of its KV heads.
struct TableEntry {
  std::int32_t layer = 0, head = -1;  // -1: all heads
  double value = 0;
};
// Reads "0=512 1=256 3.1=64" (layer or layer.head, then a value in [min, max]) or, without values, "0.1 4". Stops with the place of `key`.
std::vector<TableEntry> read_table(Params& p, const std::string& key, bool with_values, double min, double max, const std::string& meaning);
// "" or why the table does not fit the model.
std::string refuses_table(const std::vector<TableEntry>& table, const std::string& key, const ModelShape& model);
// The head's entry if there is one, else its layer's, else null.
const TableEntry* find_entry(const std::vector<TableEntry>& table, std::int32_t layer, std::int32_t head);

}  // namespace kvlab
