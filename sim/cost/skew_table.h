#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/step_prices.h"

namespace kvlab {

// Bin i: edge[i] < v <= edge[i + 1]; outer values go to outer bins.
struct SkewAxis {
  std::vector<double> edges;  // bins + 1, ascending
  std::vector<std::string> labels;
  [[nodiscard]] std::size_t bin(double value) const;
};

// alpha by (prompt tokens in the step, decode rows, skew, longest row, kv before the prompt), LLMServingSim's skew_fit. Prompt tokens must
// match exactly; else, or without an entry, alpha_default. Clamped to [0, 1], the times of both even batches.
//   skew = var / (var + (longest - mean)^2) of decode lengths: for two lengths, the share of long rows
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
  // prompt_tokens: sum over prompts; before: cached tokens, mean over prompt tokens.
  [[nodiscard]] double mixed_alpha(const DecodeBatch& batch, std::int64_t prompt_tokens, double before) const;

  [[nodiscard]] const SkewAxis& axis(std::size_t i) const { return axes_[i]; }  // rows, skew, longest, before
  [[nodiscard]] double alpha_default() const { return alpha_default_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  [[nodiscard]] std::size_t cell(const DecodeBatch& batch, std::size_t before_bin) const;
  std::vector<SkewAxis> axes_;
  double alpha_default_;
  std::vector<Entry> entries_;
  std::vector<std::int64_t> prompt_tokens_;  // ascending
  std::vector<std::vector<double>> alpha_;   // by profiled value: [rows][skew][longest][before]
};

}  // namespace kvlab
