#pragma once

#include <cstdint>
#include <string>

namespace kvlab {

// The tensors that a part reads beyond K and V. Hosts compute only these, and refuse a recipe whose needs they cannot meet.
struct Needs {
  bool step_queries = false;        // this step's queries: a chunk's in prefill, one per sequence in decode
  bool prompt_queries = false;      // of these, every chunk's, as statistics add up. Implied by num_words() > 0
  std::int32_t window_queries = 0;  // the last w queries of the prompt, kept across chunks
  bool pre_rope_queries = false;    // of the whole prompt
  bool pre_rope_keys = false;
  bool turns = false;           // applies RoPE to queries or keys itself
  bool output_weights = false;  // W_o
  bool hidden = false;          // the attention layer's input
  bool guessed_query = false;   // in decode: the input of the layer before, and this layer's W_q
  bool token_ids = false;
  bool question = false;        // the start of the question in the prompt
  bool future_queries = false;  // queries of later steps: an oracle's knowledge
  std::string pass;             // an extra forward pass, by name
  bool pass_hidden = false;     // the attention layers' inputs in that pass
  bool cpu_only = false;        // some operation has no CUDA kernel, or needs more than 16 bits
  bool weights = false;         // trained tensors, which were not given: only costs are known
  void add(const Needs& other);
  // The begin of the assumed question where the real one is not known: the prompt's last window_queries tokens, at least 32. -1: no part
  // needs it.
  [[nodiscard]] std::int32_t assumed_question(std::int32_t prompt_tokens) const;
};

}  // namespace kvlab
