#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/label/label_heads.h"
#include "policies/kv/prefill_selector/head_patterns.h"

namespace kvlab {

// One query head over a prompt: [tokens, head_dim].
struct HeadPrompt {
  std::int32_t tokens = 0, head_dim = 0;
  std::int64_t window = 0;  // 0: none
  std::vector<float> q, k, v, out;
};

// The pattern of least output error at equal cost (MInference, Jiang et al. 2024, arXiv:2407.02490, section 3.2): `flops_frac` of causal
// attention on the first prompt, with the choice. Error: squared differences over squares.
class HeadPatternSearch {
 public:
  explicit HeadPatternSearch(double flops_frac) : flops_frac_(flops_frac) {}
  // Throws InputError if every pattern has more FLOPs.
  void see(const HeadPrompt& prompt);
  struct Found {
    HeadPattern pattern;
    double error = 0;
    double flops_frac = 0;  // on the first prompt
  };
  // Needs a prompt; the first among equals.
  [[nodiscard]] Found best() const;

 private:
  struct Candidate {
    HeadPattern pattern;
    double flops_frac, error = 0;
  };
  void add_candidates(const HeadPrompt& prompt);

  double flops_frac_, squares_ = 0;
  std::vector<Candidate> candidates_;
};

struct PrefillLabels {
  std::vector<HeadPatternSearch::Found> heads;  // [layers * q_heads]
  std::int32_t q_heads = 0;
};

// On the options' needle prompts (seed, probes, prompt_tokens). Deterministic. Throws InputError beyond the context or for a too small
// flops_frac.
PrefillLabels label_prefill(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options, double flops_frac);

// In read_head_patterns() format.
std::string prefill_labels_text(const PrefillLabels& labels);

}  // namespace kvlab
