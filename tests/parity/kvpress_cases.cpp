#include "kvpress_cases.h"

namespace kvlab {

namespace {

// Sums of thousands of float32 terms, and the exponential of large logits, carry more than a float's rounding: 1.5e-6 and 5.6e-6 between
// float32 and float64 runs of the same formula.
constexpr double kAmplified = 1e-5;

std::vector<PressCase> make_cases() {
  std::vector<PressCase> c;
  c.push_back({"streaming_llm", "", "", Pool::kRow, 0});
  c.push_back({"knorm"});
  c.push_back({"snapkv"});
  c.push_back({"tova"});
  c.push_back({"observed_attention", "", "", Pool::kRow, kAmplified});
  c.push_back({"expected_attention", "", "", Pool::kRow, kAmplified});
  c.push_back({"pyramidkv", "",
               "scorer: {window_attention: {window_tokens: 16, pool: avg, pool_tokens: 5, queries: mean}}, "
               "allocator: {pyramid: {beta: 4, window_tokens: 16, rounding: kvpress}}"});
  c.push_back({"pyramidkv_default", "pyramidkv"});
  c.push_back({"lagkv", "", "scorer: {lag_relative: {sinks_tokens: 4, lag_tokens: 32, epsilon: 0, tail: equal}}", Pool::kRow, 0});
  // Scores are ranks among 128 tokens: values that rounding exchanges stand one rank apart.
  c.push_back({"lagkv_default", "lagkv", "", Pool::kRow, 1e-2});
  c.push_back({"keydiff"});
  c.push_back({"simlayerkv", "", "allocator: {lazy_layers: {tau: 0.6, sinks_tokens: 4, measures: kvpress}}", Pool::kRow, 0});
  c.push_back({"chunkkv"});
  c.push_back({"criticalkv"});
  c.push_back({"criticalkv_expected", "", "", Pool::kRow, kAmplified});
  c.push_back({"cur"});
  c.push_back({"finch"});
  c.push_back({"finch_chunked", "", "", Pool::kSlice, 1e-6, 256});
  c.push_back({"think", "", "format: {think: {ratio: RATIO, window_tokens: 32, scope: prompt}}", Pool::kRow, 0});
  c.back().channels = true;
  c.push_back({"kvzip", "", "", Pool::kModel, kAmplified});
  c.push_back({"kvzip_layerwise", "", "", Pool::kLayer, kAmplified});
  c.push_back({"kvzip_plus", "", "", Pool::kModel, kAmplified});
  c.push_back({"adakv", "", "", Pool::kLayer});
  c.push_back({"adakv_expected", "", "", Pool::kLayer, kAmplified});
  c.push_back({"adakv_knorm", "", "", Pool::kLayer});
  c.push_back({"critical_adakv"});
  c.push_back({"non_causal"});
  c.push_back({"block_keydiff"});
  c.back().block_tokens = 128;
  c.push_back({"chunk_knorm", "", "", Pool::kSlice, 1e-6, 256});
  c.push_back({"capkv", "", "", Pool::kRow, kAmplified});
  for (PressCase& press : c)
    if (press.recipe.empty()) press.recipe = press.press;
  return c;
}

}  // namespace

const std::vector<PressCase>& press_cases() {
  static const std::vector<PressCase> cases = make_cases();
  return cases;
}

}  // namespace kvlab
