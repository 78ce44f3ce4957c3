#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlab {

// How a model stretches rotary positions beyond the length it was first trained for. Formulas as in Hugging Face transformers, whose
// names for them are in quotes.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    kNone,     // "default"
    kLinear,   // "linear": positions divided by `factor` (Chen et al. 2023, arXiv:2306.15595)
    kDynamic,  // "dynamic": a larger base once the sequence is longer than `original_tokens`; up to there the same as none
    kLlama3,   // "llama3": slow pairs are divided by `factor`, fast ones stay, between them a ramp
    kYarn      // "yarn": the same by another ramp, and larger queries and keys (Peng et al. 2023, arXiv:2309.00071)
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double original_tokens = 0;                        // length of the first training
  double low_freq_factor = 1, high_freq_factor = 1;  // llama3: turns within original_tokens where the ramp begins and ends
  double beta_fast = 32, beta_slow = 1;              // yarn: the same, from its other end
  bool truncate = true;                              // yarn: the ramp begins and ends at whole pairs
  double attention_factor = 1;                       // yarn: of cosines and sines
};

// Base and scaling of a model's rotary positions. A base alone converts to it: no scaling.
struct RopeForm {
  double base = 0;  // theta; 0: the model has no RoPE
  RopeScaling scaling = {};
  constexpr RopeForm(double theta = 0, const RopeScaling& s = {}) : base(theta), scaling(s) {}  // NOLINT: a base is a form
};

// yarn's default attention factor, 0.1 m ln(factor) + 1 (Peng et al. 2023, section 3.4), or the ratio of two of these where both 'mscale'
// and 'mscale_all_dim' are above 0, as in transformers.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);

// Cosines and sines of rotary positions (Su et al. 2021), in float32 step by step, as models are trained and served: at position 4,000 more
// exact frequencies would give other angles.
class Rotary {
 public:
  Rotary(const RopeForm& form, std::int32_t head_dim);

  // Radians per position of each pair of channels [head_dim / 2] in a pass whose longest sequence has `tokens` tokens. Only kDynamic beyond
  // original_tokens depends on `tokens`: there keys of earlier, shorter passes were rotated by other frequencies.
  [[nodiscard]] std::vector<float> frequencies(std::int64_t tokens) const;
  // Writes cos and sin [positions, head_dim / 2] for the positions of one pass.
  void fill(std::span<const std::int32_t> positions, float* cos, float* sin) const;

 private:
  RopeForm form_;
  std::int32_t head_dim_;
  std::vector<float> frequencies_;  // up to original_tokens
};

}  // namespace kvlab
