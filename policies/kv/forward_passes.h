#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvlab {

// A chunk of an extra forward pass: its queries, and the prompt's tokens that they are read over.
struct PassShape {
  std::int32_t count = 0, first_position = 0, ctx_begin = 0, ctx_end = 0;
  friend bool operator==(const PassShape&, const PassShape&) = default;
};

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
// "template" and "windows".
bool runs_after_chunks(const std::string& pass);
// Passes after chunks read `cached` tokens, others the whole prompt. Throws InputError for an unknown name.
std::vector<PassShape> pass_shapes(const std::string& name, std::int32_t prompt_tokens, std::int32_t cached, const PassSizes& sizes = {});

bool has_backward(const std::string& name);

// Windows with the largest cosine between their tf-idf vectors (idf = ln(windows / windows with the token)) and the mean: EpiCache for one
// cluster, without its sentence encoder. `begin` ascends.
struct PromptWindows {
  std::vector<std::int32_t> begin;
  std::int32_t tokens = 0;
};
PromptWindows typical_windows(std::span<const std::int32_t> prompt_ids, const PassSizes& sizes = {});

}  // namespace kvlab
