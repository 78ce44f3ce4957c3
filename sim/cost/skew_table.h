#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/step_prices.h"

namespace kvlab {

// Right-inclusive bins: value v is in bin i when edge[i] < v <= edge[i + 1]; below the first edge it counts as bin 0, above
// the last as the last bin.
struct SkewAxis {
  std::vector<double> edges;        // bins + 1, ascending
  std::vector<std::string> labels;  // one per bin
  [[nodiscard]] std::size_t bin(double value) const;
};

// alpha per bucket of (prompt tokens in the step, decode rows, skew, longest row, kv before the prompt), from LLMServingSim's skew_fit.
// Prompt tokens must match a profiled value exactly; a bucket without an entry has alpha_default. An alpha outside [0, 1] is measurement
// noise and is cut off: the time is between those of the two even batches.
//   skew = var / (var + (longest - mean)^2) of the decode rows' lengths: of a batch of two lengths, the share of long rows
class SkewTable final : public SkewRule {
 public:
  struct Entry {
    std::int64_t prompt_tokens;
    std::size_t rows, skew, longest, before;  // bins
    double alpha;
  };
  SkewTable(SkewAxis rows, SkewAxis skew, SkewAxis longest, SkewAxis before, double alpha_default, std::vector<Entry> entries);

  [[nodiscard]] int bucket(const DecodeBatch& batch) const override;
  [[nodiscard]] double alpha(int bucket) const override;
  // alpha of a step with prompts: `prompt_tokens` is their sum; `before`, their cached tokens, is the mean over prompt tokens.
  [[nodiscard]] double mixed_alpha(const DecodeBatch& batch, std::int64_t prompt_tokens, double before) const;

  [[nodiscard]] const SkewAxis& axis(std::size_t i) const { return axes_[i]; }  // rows, skew, longest, before
  [[nodiscard]] double alpha_default() const { return alpha_default_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  [[nodiscard]] std::size_t cell(const DecodeBatch& batch, std::size_t before_bin) const;
  std::vector<SkewAxis> axes_;
  double alpha_default_;
  std::vector<Entry> entries_;
  std::vector<std::int64_t> prompt_tokens_;  // profiled values, ascending
  std::vector<std::vector<double>> alpha_;   // per profiled value: [rows][skew][longest][before]
};

}  // namespace kvlab
