#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config/param_reader.h"
#include "policies/kv/allocator/allocator.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

// In every head of sequence s.
inline void keep_alike(ScoredLayer& layer, std::int32_t s, std::int64_t tokens) {
  const std::int32_t row = s * layer.kv.kv_heads;
  for (std::int32_t r = row; r < row + layer.kv.kv_heads; ++r)
    layer.keep[r] = static_cast<std::int32_t>(std::clamp<std::int64_t>(tokens, 0, layer.kv.len[r]));
}

inline std::int32_t longest_row(const KvRows& kv, std::int32_t s) {
  const std::int32_t* len = kv.len + s * kv.kv_heads;
  return *std::max_element(len, len + kv.kv_heads);
}

inline std::int32_t shortest_row(const KvRows& kv, std::int32_t s) {
  const std::int32_t* len = kv.len + s * kv.kv_heads;
  return *std::min_element(len, len + kv.kv_heads);
}

inline std::span<std::int32_t> all_counts(const ScoredLayer& layer) { return {layer.keep, static_cast<std::size_t>(layer.kv.num_rows)}; }

// counts[i] = clamp(round(total * w_i / sum w), floor[i], cap[i]), rounded cumulatively: without clamps the counts sum to the total. Tokens
// that the bounds remove or add are lost, or spread over the members with room. Negative and infinite weights count as 0; all 0 as equal.
enum class Excess : std::uint8_t { kLost, kEven, kByWeight };
void split_total(std::span<const double> weights, std::int64_t total, std::span<const std::int32_t> floor,
                 std::span<const std::int32_t> cap, Excess excess, std::span<std::int32_t> counts);

// exp(-(x_i - min x) / temperature).
std::vector<double> softmax_of_negative(std::span<const double> x, double temperature);

// As split_total() for each sequence, as one call: weights[s][i], arrays [sequences, members] in CPU memory.
void share_out(Ops& ops, std::span<const std::vector<double>> weights, const std::int64_t* total, const std::int32_t* floor,
               const std::int32_t* cap, Excess excess, std::int32_t* counts);

// Gives tokens that rows cannot take to rows with room, in equal parts, until the sum is `total` or all are full.
void pass_on(std::span<std::int32_t> counts, std::span<const std::int32_t> len, std::int64_t total);

// Rounded once for several rows, as in kvpress: dropped tokens down; kept tokens down, at least 1.
inline std::int64_t left_of(std::int64_t held, double dropped_frac) {
  return held - static_cast<std::int64_t>(static_cast<double>(held) * dropped_frac);
}
inline std::int64_t kept_of(std::int64_t held, double frac) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(held) * frac));
}

// LU-KV's float32 rounding: the layer keeps its rounded sum, by largest remainders. At least 1.
std::int32_t tokens_by_remainder(std::span<const float> shares, std::int32_t head, std::int32_t n);

struct TableEntry {
  std::int32_t layer = 0, head = -1;  // -1: all heads
  double value = 0;
};
// "0=512 1=256 3.1=64" (layer or layer.head = value in [min, max]) or "0.1 4". Throws InputError at `key`.
std::vector<TableEntry> read_table(Params& p, const std::string& key, bool with_values, double min, double max, const std::string& meaning);
std::string refuses_table(const std::vector<TableEntry>& table, const std::string& key, const ModelShape& model);
// The head's, else its layer's, else null.
const TableEntry* find_entry(const std::vector<TableEntry>& table, std::int32_t layer, std::int32_t head);

// [layers, kv_heads]
// - kGates: gates (DuoAttention)
// - kInduction: kv_induction and kv_echo (RazorAttention)
enum class HeadLabel : std::uint8_t { kGates, kInduction };
inline constexpr std::initializer_list<Named<HeadLabel>> kLabels{{"gates", HeadLabel::kGates}, {"induction", HeadLabel::kInduction}};

class HeadLabels {
 public:
  HeadLabels() = default;  // none given
  // The top `frac` of KV heads, rounded; kInduction: first the top echo_frac by echo, then by induction. Ties: first. Throws InputError for
  // a missing tensor or another shape.
  HeadLabels(std::shared_ptr<const TrainedTensors> weights, HeadLabel label, double frac, double echo_frac);
  [[nodiscard]] bool are_given() const { return weights_ != nullptr; }
  [[nodiscard]] const std::vector<TableEntry>& retrieval_heads() const { return heads_; }
  [[nodiscard]] std::string refuses(const ModelShape& model) const;

 private:
  [[nodiscard]] const char* tensor() const { return label_ == HeadLabel::kGates ? "gates" : "kv_induction"; }
  std::shared_ptr<const TrainedTensors> weights_;
  HeadLabel label_ = HeadLabel::kGates;
  std::vector<TableEntry> heads_;
};

// Indices, ascending. Ties: first.
std::vector<std::int32_t> largest(std::span<const float> values, std::size_t count);

}  // namespace kvlab
