#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

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

}  // namespace kvlab
