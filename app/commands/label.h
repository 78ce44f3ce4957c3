#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

#include "engine/label/label_heads.h"

namespace kvlab {

// `kvlab label heads`, `q_filters` and `prefill`: run a model on generated prompts and write what recipes take as `weights:`.
struct LabelCommand {
  std::string model, output, text_file;
  LabelOptions options;
  std::int32_t calibration_tokens = 3072;                  // of q_filters
  std::int32_t prefill_probes = 3, prefill_tokens = 2048;  // needle prompts of prefill, and tokens of one
  double flops_frac = 0.25;                                // of prefill
};

int write_labels_of_heads(const LabelCommand& command, std::ostream& out);
int write_filters_of_queries(const LabelCommand& command, std::ostream& out);
int write_patterns_of_prompts(const LabelCommand& command, std::ostream& out);

// Adds the command `label`, whose options write into the struct, which outlives `app`; `choose` gets the chosen one.
void add_label_command(CLI::App& app, LabelCommand& command,
                       const std::function<void(int (*)(const LabelCommand&, std::ostream&))>& choose);

}  // namespace kvlab
