#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "engine/label/label_heads.h"

namespace kvlab {

// `kvlab label heads`, `q_filters` and `prefill`: writes a recipe's `weights:`.
struct LabelCommand {
  std::string model, output, text_file;
  LabelOptions options;
  std::int32_t calibration_tokens = 3072;                  // q_filters
  std::int32_t prefill_probes = 3, prefill_tokens = 2048;  // prefill: needle prompts, tokens of each
  double flops_frac = 0.25;                                // prefill
};

int write_labels_of_heads(const LabelCommand& command, std::ostream& out);
int write_filters_of_queries(const LabelCommand& command, std::ostream& out);
int write_patterns_of_prompts(const LabelCommand& command, std::ostream& out);

}  // namespace kvlab
