#pragma once

#include <string>
#include <vector>

#include "policies/kv/shape_observer.h"

namespace kvlab {

// The chunks of an extra forward pass over a prompt, as the recorder and the engine run them:
// "reconstruct" feeds each chunk of `chunk_tokens` prompt tokens again, with an instruction of `instruction_tokens` before it (KVzip: Kim
// et al. 2025, arXiv:2505.23416, section 3); "reconstruct_gradient" does so in chunks of `gradient_chunk_tokens`, each with a backward pass
// (KVgrad, openreview.net/forum?id=cg1wTCJjjk); "repeat" feeds the prompt's tokens again in one piece (KVCompose: Akulov et al. 2025,
// arXiv:2509.05165); "lookahead" decodes `lookahead_tokens` one after the other (LAQ: Wang et al. 2025,
// arXiv:2505.20334). Error (InputError): another name.
struct PassSizes {
  std::int32_t chunk_tokens = 2048, gradient_chunk_tokens = 512, instruction_tokens = 16, lookahead_tokens = 8;
};
std::vector<PassShape> pass_shapes(const std::string& name, std::int32_t prompt_tokens, const PassSizes& sizes = {});

// True: each chunk has a backward pass with respect to activations.
bool has_backward(const std::string& name);

// The sizes beside lengths that a recipe with these needs observes for a sequence in serving: the assumed question, and in the step that
// completes the prompt the extra pass.
SeqExtras extras_of(const Needs& needs, std::int32_t prompt_tokens, bool completes_prompt);

}  // namespace kvlab
