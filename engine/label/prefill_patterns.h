#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/label/label_heads.h"
#include "policies/kv/prefill_selector/head_patterns.h"

namespace kvlab {

// A query head's attention over a whole prompt. Arrays are [tokens, head_dim].
struct HeadPrompt {
  std::int32_t tokens = 0, head_dim = 0;
  std::int64_t window = 0;  // of the layer; 0: none
  std::vector<float> q, k, v, out;
};

// The pattern by which a head's prompt attention is cut down with the least error, among patterns of equal cost. MInference, Jiang et al.
// 2024, arXiv:2407.02490, section 3.2. The candidates are first and newest tokens, columns and diagonals, and blocks by their means, each
// with a few ratios of its two numbers. On the first prompt each gets the largest numbers whose operations, the choice included, have no
// more than `flops_frac` of the FLOPs of causal attention over all tokens. The error is that of the attention's output: the sum of squared
// differences over the sum of squares, which does not depend on the scale of values (the authors count elements that differ by over 0.005).
class HeadPatternSearch {
 public:
  explicit HeadPatternSearch(double flops_frac) : flops_frac_(flops_frac) {}
  // Error (InputError): every pattern of this prompt has more FLOPs.
  void see(const HeadPrompt& prompt);
  struct Found {
    HeadPattern pattern;
    double error = 0;       // over all prompts
    double flops_frac = 0;  // on the first prompt
  };
  // Valid after at least one prompt. Among equal errors, the first in the order above.
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

// The patterns of all query heads on the options' needle prompts (seed, probes, prompt_tokens), each computed densely and in one piece.
// Deterministic. Errors (InputError): prompts that do not fit into the model's context; flops_frac is too small.
PrefillLabels label_prefill(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options, double flops_frac);

// As read_head_patterns() reads it; scores are the errors.
std::string prefill_labels_text(const PrefillLabels& labels);

}  // namespace kvlab
