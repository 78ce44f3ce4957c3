#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "engine/label/label_heads.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// Runs a model on a prompt and writes its attention inputs. Either ids_file, a JSON list of token ids or {ids, continuation, task, needles:
// [[begin, end]], question_begin}, or text_file, for the model's tokenizer (byte-level models: bytes after <s>).
struct RecordCommand {
  std::string model, ids_file, text_file, output, dtype = "f16", backend = "cpu";
  std::int32_t prompt_tokens = 0;  // taken from the input; 0: all
  std::int32_t decode_tokens = 0, chunk_tokens = 0;
  bool pre_rope = false, hidden = false, w_o = false, w_q = false;
  std::string kv_policy;           // active recipe; "": none
  std::int32_t budget_tokens = 0;  // of the recipe; 0: as in its file
  std::vector<std::string> passes;
};
int record_trace(const RecordCommand& command, std::ostream& out);

// As load_recipe. Throws InputError if unknown.
Recipe named_recipe(const std::string& name, std::int32_t budget_tokens = 0);

// For each tensor `i.ids` (int32 or int64 [n]) writes `i.logits` (float32 [n, vocab_size]), the logits at every position.
struct LogitsCommand {
  std::string model, ids_file, output, backend = "cpu";
  std::int32_t chunk_tokens = 0;  // of the prefill; 0: the whole prompt
};
int write_logits(const LogitsCommand& command, std::ostream& out);

// One of two files; "-": standard input. text_file: prints ids as a JSON list, or with shows_tokens "id token" lines. ids_file (JSON list):
// prints the text.
struct TokenizeCommand {
  std::string model, text_file, ids_file;
  bool shows_tokens = false, without_special = false;
};
int tokenize(const TokenizeCommand& command, std::ostream& out);

// Throws InputError with the first byte that is not UTF-8.
void check_utf8(std::string_view text, const std::string& file);

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
