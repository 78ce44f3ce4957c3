#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvlab {

// A chunk of queries, and the prompt tokens that they read.
struct PassShape {
  std::int32_t count = 0, first_position = 0, ctx_begin = 0, ctx_end = 0;
  friend bool operator==(const PassShape&, const PassShape&) = default;
};

// Chunks of an extra forward pass:
// "reconstruct" feeds each chunk of `chunk_tokens` prompt tokens again, after an instruction of `instruction_tokens` (KVzip, section 3);
// "reconstruct_gradient" adds a backward pass, in chunks of `gradient_chunk_tokens` (KVgrad, openreview.net/forum?id=cg1wTCJjjk); "repeat"
// feeds the prompt again in one piece (KVCompose); "lookahead" decodes `lookahead_tokens` (LAQ).
// Two passes run after each prompt chunk, over the current cache: "template" feeds a chat template's tokens between user text and answer
// (StreamMem), "windows" feeds the windows of the prompt most similar to all of it (EpiCache).
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
