#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlab {

// Formulas and quoted names: Hugging Face transformers.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    kNone,     // "default"
    kLinear,   // "linear": positions divided by `factor` (Chen et al. 2023, arXiv:2306.15595)
    kDynamic,  // "dynamic": a larger base beyond `original_tokens`
    kLlama3,   // "llama3": slow pairs divided by `factor`, a ramp to the fast ones
    kYarn      // "yarn": another ramp, larger queries and keys (Peng et al. 2023, arXiv:2309.00071)
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double original_tokens = 0;                        // of the first training
  double low_freq_factor = 1, high_freq_factor = 1;  // llama3: turns at the ramp's ends
  double beta_fast = 32, beta_slow = 1;              // yarn: the ramp's ends
  bool truncate = true;                              // yarn: the ramp's ends are whole pairs
  double attention_factor = 1;                       // yarn: of cosines and sines
};

struct RopeForm {
  double base = 0;  // theta; 0: no RoPE
  RopeScaling scaling = {};
  constexpr RopeForm(double theta = 0, const RopeScaling& s = {}) : base(theta), scaling(s) {}  // NOLINT: a base is a form
};

// 0.1 m ln(factor) + 1 (Peng et al. 2023, section 3.4), or the ratio of two if 'mscale' and 'mscale_all_dim' are above 0.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);

// Rotary positions (Su et al. 2021), float32 at every step, as models are trained.
class Rotary {
 public:
  Rotary(const RopeForm& form, std::int32_t head_dim);

  // Radians per position [head_dim / 2]. `tokens`: longest sequence, for kDynamic.
  [[nodiscard]] std::vector<float> frequencies(std::int64_t tokens) const;
  // cos, sin [positions, head_dim / 2].
  void fill(std::span<const std::int32_t> positions, float* cos, float* sin) const;

 private:
  RopeForm form_;
  std::int32_t head_dim_;
  std::vector<float> frequencies_;  // up to original_tokens
};

}  // namespace kvlab
