#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace kvlab {

// The shares that presses drop.
inline const std::vector<std::string> kPressRatios{"0.13", "0.5", "0.77"};

// The set in which tokens of one selection compete.
enum class Pool : std::uint8_t { kRow, kSlice, kLayer, kModel };

// One press of tests/parity/kvpress/cases.py and the recipe that claims to keep the same tokens.
struct PressCase {
  std::string press;           // as the result files name it
  std::string recipe = {};     // "" is kvpress_ and the press's name
  std::string overrides = {};  // of the recipe, in addition to the budget; RATIO is replaced by the ratio, BY_RATIO by a text of `by_ratio`
  Pool pool = Pool::kRow;
  double tie = 1e-6;  // relative distance from the boundary up to which a token may fall on the other side; 0: not even equal ones
  std::int32_t slice_tokens = 0;  // of Pool::kSlice
  bool channels = false;          // the set is of channels
  std::string budget = "compression_ratio: RATIO";
  // A recipe by whose scores tokens may be exchanged with others of equal score, for presses that choose in several stages.
  std::string judge = {};
  std::vector<std::string> by_ratio = {};  // in the order of kPressRatios
};

// Sums of thousands of float32 terms, and the exponential of large logits, carry more than a float's rounding: 1.5e-6 and 5.6e-6 between
// float32 and float64 runs of the same formula.
inline constexpr double kAmplified = 1e-5;
inline constexpr int kLayers = 8, kHeads = 2;
inline const char* const kWindow = "{window_attention: {window_tokens: 64, pool: avg, pool_tokens: 5, queries: mean}}";

// Values of allocator `table`, one for each layer.
inline std::string table(const std::function<double(int layer)>& kept) {
  std::string text;
  for (int l = 0; l < kLayers; ++l) text += fmt::format("{}{}={:.17g}", text.empty() ? "" : " ", l, kept(l));
  return text;
}

inline std::vector<std::string> for_each_ratio(const std::function<std::string(double ratio)>& text) {
  std::vector<std::string> texts;
  for (const std::string& ratio : kPressRatios) texts.push_back(text(std::strtod(ratio.c_str(), nullptr)));
  return texts;
}

// layer_ratios() of cases.py.
inline std::string layer_shares(double ratio) {
  return table([&](int l) { return 1 - std::min(0.95, ratio * (0.6 + 0.1 * l)); });
}

// The heads that keep everything, of HEAD_SCORES of cases.py.
inline std::string retrieval_heads(double ratio) {
  std::string text;
  const auto streaming = static_cast<int>(std::nearbyint(kLayers * kHeads * ratio));
  for (int i = 0; i < kLayers * kHeads; ++i)
    if (7 * i % 16 >= streaming) text += fmt::format("{}{}.{}", text.empty() ? "" : " ", i / kHeads, i % kHeads);
  return text;
}

inline void add_scored_presses(std::vector<PressCase>& c) {
  c.push_back({"streaming_llm", "", "", Pool::kRow, 0});
  c.push_back({"knorm"});
  c.push_back({"random", "", "scorer: {random: {generator: torch, torch_seed: 7}}", Pool::kRow, 0});
  c.push_back({"snapkv"});
  c.push_back({"tova"});
  c.push_back({"observed_attention", "", "", Pool::kRow, kAmplified});
  c.push_back({"expected_attention", "", "", Pool::kRow, kAmplified});
  c.push_back({"expected_mean", "kvpress_expected_attention",
               "scorer: {expected_attention: {future_tokens: 512, sinks_tokens: 4, epsilon: 0.02, covariance: false}}", Pool::kRow,
               kAmplified});
  c.push_back({"pyramidkv", "",
               "scorer: {window_attention: {window_tokens: 16, pool: avg, pool_tokens: 5, queries: mean}}, "
               "allocator: {pyramid: {beta: 4, window_tokens: 16, rounding: kvpress}}"});
  c.push_back({"pyramidkv_default", "kvpress_pyramidkv"});
  c.push_back({"lagkv", "", "scorer: {lag_relative: {sinks_tokens: 4, lag_tokens: 32, epsilon: 0, tail: equal}}", Pool::kRow, 0});
  // Scores are ranks among 128 tokens: values that rounding exchanges are one rank apart.
  c.push_back({"lagkv_default", "kvpress_lagkv", "", Pool::kRow, 1e-2});
  c.push_back({"lagkv_cross", "kvpress_lagkv",
               "scorer: {lag_relative: {sinks_tokens: 4, lag_tokens: 128, epsilon: 0, tail: equal, ranks: false}}"});
  c.push_back({"keydiff"});
  c.push_back({"key_rerotation"});
  c.push_back({"simlayerkv", "", "allocator: {lazy_layers: {tau: 0.6, sinks_tokens: 4, measures: kvpress}}", Pool::kRow, 0});
  c.push_back({"per_layer", "kvpress_knorm", "allocator: {table: {unit: prompt_frac, values: \"BY_RATIO\"}}"});
  c.back().by_ratio = for_each_ratio(layer_shares);
  for (const char* leverage : {"key", "value", "mean"})
    c.push_back({fmt::format("cur_{}", leverage), "kvpress_cur",
                 fmt::format("scorer: {{cur: {{window_tokens: 16, sinks_tokens: 4, leverage: {}}}}}", leverage)});
  c.push_back({"cur_global", "kvpress_cur", "scorer: {cur: {relative_to: prompt, sinks_tokens: 4}}"});
  c.push_back({"cur"});
  c.push_back({"think", "", "format: {think: {ratio: RATIO, window_tokens: 32, scope: prompt}}", Pool::kRow, 0});
  c.back().channels = true, c.back().budget = "";
  c.push_back({"non_causal"});
  c.push_back({"compactor", "",
               "scorer: {compactor: {chunk_tokens: 256, padded: true, sinks_tokens: 8, recent_tokens: 4, ends: left_out, leverage_weight: "
               "1e-30}}"});
  c.push_back({"capkv", "", "", Pool::kRow, kAmplified});
  c.push_back({"merging"});
}

inline void add_wrapped_presses(std::vector<PressCase>& c) {
  c.push_back({"chunkkv"});
  c.push_back({"chunkkv_knorm", "kvpress_chunkkv",
               "scorer: {chunks: {of: key_norm, chunk_tokens: 20, protect: above_max, budget_of_chunks: true, peer_ties: true}}"});
  c.push_back({"chunkkv_long", "kvpress_chunkkv",
               fmt::format("scorer: {{chunks: {{of: {}, chunk_tokens: 300, protect: above_max, budget_of_chunks: true, peer_ties: true}}}}",
                           kWindow)});
  c.push_back({"entropy_chunkkv"});
  c.push_back({"entropy_knorm", "kvpress_entropy_chunkkv", "scorer: {entropy_chunks: {of: key_norm}}"});
  c.push_back({"criticalkv"});
  c.push_back({"criticalkv_expected", "", "", Pool::kRow, kAmplified});
  c.push_back(
      {"criticalkv_knorm", "kvpress_criticalkv", "scorer: {output_aware: {of: key_norm, first_stage: of_budget, peer_ties: true}}"});
  c.push_back({"finch"});
  c.push_back({"finch_unweighed", "kvpress_finch", "scorer: {question_attention: {max_question_tokens: 4096, weigh: none}}"});
  c.push_back({"finch_chunked", "", "", Pool::kSlice, 1e-6, 256});
  c.push_back({"block_keydiff"});
  c.push_back({"block_knorm"});
  c.push_back({"chunk_knorm", "", "", Pool::kSlice, 1e-6, 256});
  c.push_back({"chunk_keydiff", "", "", Pool::kSlice, 1e-6, 256});
  c.push_back({"chunk_expected", "", "", Pool::kSlice, kAmplified, 300});
}

inline void add_presses_that_split_heads(std::vector<PressCase>& c) {
  c.push_back({"kvzip", "", "", Pool::kModel, kAmplified});
  c.push_back({"kvzip_layerwise", "", "", Pool::kLayer, kAmplified});
  c.push_back({"kvzip_plus", "", "", Pool::kModel, kAmplified});
  c.push_back({"kvgrad", "", "", Pool::kModel, kAmplified});
  c.push_back({"kvgrad_layerwise", "kvpress_kvgrad",
               "allocator: {ada: {safeguard_frac: 0, safeguard: forced_first, rounding: whole, ties: adakv}}", Pool::kLayer, kAmplified});
  c.push_back({"kvcompose", "", "", Pool::kRow, kAmplified});
  c.push_back({"kvcompose_heads", "", "", Pool::kModel, kAmplified});
  c.push_back({"adakv", "", "", Pool::kLayer});
  c.push_back({"adakv_expected", "", "", Pool::kLayer, kAmplified});
  c.push_back({"adakv_knorm", "", "", Pool::kLayer});
  c.push_back({"adakv_keydiff", "kvpress_adakv", "scorer: key_diversity", Pool::kLayer});
  c.push_back({"adakv_critical", "", "", Pool::kLayer});
  c.push_back({"critical_adakv"});
  c.push_back({"duo", "duo",
               "scorer: {recency: {sinks_tokens: 128}}, trigger: prefill_end, "
               "allocator: {head_split: {sinks_tokens: 128, retrieval_heads: \"BY_RATIO\"}}",
               Pool::kRow, 0});
  c.back().budget = "budget_tokens: 384", c.back().by_ratio = for_each_ratio(retrieval_heads);
  c.push_back({"dms_knorm", "kvpress_dms", "allocator: {score_threshold: {min_score: BY_RATIO, recent_tokens: 128}}"});
  c.back().budget = "", c.back().by_ratio = {"-22", "-18", "-15"};
  c.push_back(
      {"dms_keydiff", "kvpress_dms", "scorer: key_diversity, allocator: {score_threshold: {min_score: BY_RATIO, recent_tokens: 128}}"});
  c.back().budget = "", c.back().by_ratio = {"-0.9", "-0.7", "-0.5"};
  c.push_back({"lukv", "lukv", "weights: \"" KVLAB_SOURCE_DIR "/tests/parity/kvpress/lukv_curves.safetensors\"", Pool::kRow, kAmplified});
}

inline const std::vector<PressCase>& press_cases() {
  static const std::vector<PressCase> cases = [] {
    std::vector<PressCase> c;
    add_scored_presses(c);
    add_wrapped_presses(c);
    add_presses_that_split_heads(c);
    for (PressCase& press : c) {
      if (press.recipe.empty()) press.recipe = "kvpress_" + press.press;
      for (const char* name : {"entropy_knorm", "criticalkv_knorm", "block_knorm"})
        if (press.press == name) press.judge = "kvpress_knorm";
    }
    return c;
  }();
  return cases;
}

}  // namespace kvlab
