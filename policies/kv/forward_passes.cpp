#include "policies/kv/forward_passes.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

std::vector<PassShape> pass_shapes(const std::string& name, std::int32_t prompt_tokens, const PassSizes& sizes) {
  if (name == "lookahead") return {{sizes.lookahead_tokens, prompt_tokens, 0, prompt_tokens}};
  if (name == "repeat") return {{prompt_tokens, prompt_tokens, 0, prompt_tokens}};
  if (name != "reconstruct" && !has_backward(name))
    throw InputError("the extra pass '" + name + "' has no cost; known: lookahead, reconstruct, reconstruct_gradient, repeat");
  const std::int32_t step = has_backward(name) ? sizes.gradient_chunk_tokens : sizes.chunk_tokens;
  std::vector<PassShape> chunks;
  std::int32_t position = prompt_tokens;
  for (std::int32_t begin = 0; begin < prompt_tokens; begin += step) {
    const std::int32_t end = std::min(begin + step, prompt_tokens), count = sizes.instruction_tokens + end - begin;
    chunks.push_back({count, position, begin, end});
    position += count;
  }
  return chunks;
}

bool has_backward(const std::string& name) { return name == "reconstruct_gradient"; }

SeqExtras extras_of(const Needs& needs, std::int32_t prompt_tokens, bool completes_prompt) {
  SeqExtras extras;
  extras.question_begin = needs.assumed_question(prompt_tokens);
  if (completes_prompt && !needs.pass.empty()) extras.pass = pass_shapes(needs.pass, prompt_tokens);
  return extras;
}

}  // namespace kvlab
