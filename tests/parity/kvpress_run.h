#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "policies/kv/recipe/recipe.h"
#include "traces/attention_trace.h"

namespace kvlab {

// The tokens that kvpress kept of one prompt, as tests/parity/kvpress/README.md describes the file.
class PeerResults {
 public:
  // `rope`: a RoPE scaling of tests/parity/kvpress/rope_scaling.json, "" the model's own.
  explicit PeerResults(std::int32_t tokens, std::string rope = "");
  [[nodiscard]] const std::string& rope() const { return rope_; }
  [[nodiscard]] const SafetensorsFile& file() const { return file_; }
  [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }
  [[nodiscard]] std::int32_t question_tokens() const;
  // [layer * kv_heads + head][units], 1: kept; `units` tokens or channels.
  [[nodiscard]] std::vector<std::vector<std::uint8_t>> kept(const std::string& press, const std::string& ratio, std::int32_t units) const;
  // [layer * kv_heads + head] the smallest kept and the largest dropped score; NaN where there is none.
  struct Edge {
    float kept = 0, dropped = 0;
  };
  [[nodiscard]] std::vector<Edge> edges(const std::string& press, const std::string& ratio, const std::string& which) const;

 private:
  std::string rope_;
  SafetensorsFile file_;
  std::vector<std::int32_t> ids_;
};

// The prompt run through the probe model, with all that any recipe observes.
AttentionTrace record_prompt(const PeerResults& prompt);

// The tokens that a recipe kept of a prompt.
struct KeptSets {
  // [layer * kv_heads + head][tokens or channels], 1: kept.
  std::vector<std::vector<std::uint8_t>> keep;
  // [layer * kv_heads + head][tokens] scores that the last selection ranked by, those before the scorer's second stage, and those before
  // tokens were protected or fixed; NaN for tokens that were not ranked. Empty where nothing was cut.
  std::vector<std::vector<float>> ranked, first_stage, scored;
  double cpu_ms = 0;  // of the policy's own work, all layers and threads
};

// `channels`: the sets are of the channels of K that are not 0 everywhere.
KeptSets run_prompt(AttentionTrace& trace, Recipe recipe, bool channels);

}  // namespace kvlab
