#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/kv/shape_observer.h"

namespace kvlab {

// The chunks of an extra forward pass over a prompt, as the recorder and the engine run them:
// "reconstruct" feeds each chunk of `chunk_tokens` prompt tokens again, with an instruction of `instruction_tokens` before it (KVzip: Kim
// et al. 2025, arXiv:2505.23416, section 3); "reconstruct_gradient" does so in chunks of `gradient_chunk_tokens`, each with a backward pass
// (KVgrad, openreview.net/forum?id=cg1wTCJjjk); "repeat" feeds the prompt's tokens again in one piece (KVCompose: Akulov et al. 2025,
// arXiv:2509.05165); "lookahead" decodes `lookahead_tokens` one after the other (LAQ: Wang et al. 2025,
// arXiv:2505.20334).
// Two passes run after each chunk of a prompt, over what the cache then holds: "template" feeds the tokens of a chat template that come
// between a user's text and the answer (StreamMem: Yang et al. 2025, arXiv:2508.15717), "windows" feeds windows of the prompt itself that
// are most like all of it (EpiCache: Kim et al. 2025, arXiv:2509.17396).
struct PassSizes {
  std::int32_t chunk_tokens = 2048, gradient_chunk_tokens = 512, instruction_tokens = 16, lookahead_tokens = 8;
  std::int32_t template_tokens = 16, windows = 8, window_tokens = 32;
};
// True: "template" and "windows".
bool runs_after_chunks(const std::string& pass);
// For a pass over `cached` tokens of a prompt: all of them, except in passes that run after chunks. Error (InputError): another name.
std::vector<PassShape> pass_shapes(const std::string& name, std::int32_t prompt_tokens, std::int32_t cached, const PassSizes& sizes = {});

// True: each chunk has a backward pass with respect to activations.
bool has_backward(const std::string& name);

// Begins of the prompt's windows that the pass "windows" feeds, ascending, and the length of each. The prompt is cut into windows of equal
// length from its begin on; those whose tokens, counted and weighted by ln(windows / windows that have the token), have the largest cosine
// with the mean of all are taken. EpiCache's medoids where all windows are one cluster, with counts in place of its sentence encoder.
struct PromptWindows {
  std::vector<std::int32_t> begin;
  std::int32_t tokens = 0;
};
PromptWindows typical_windows(std::span<const std::int32_t> prompt_ids, const PassSizes& sizes = {});

// The sizes beside lengths that a recipe with these needs observes for a sequence in a step of serving: the assumed question, and the extra
// pass if it runs after this step.
SeqExtras extras_of(const Needs& needs, const SeqStep& seq);

}  // namespace kvlab
