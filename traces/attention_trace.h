#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/safetensors.h"

namespace kvlab {

// The recorded tensors of one layer, row-major. Keys and queries are post-RoPE unless `pre_`; K and V are per KV head, never repeated. A
// vector is empty where its tensor was not recorded; q, k and v always are.
struct LayerTensors {
  std::vector<float> q;             // [tokens, q_heads, head_dim]
  std::vector<float> k, v;          // [tokens, kv_heads, head_dim]
  std::vector<float> pre_q, pre_k;  // as q and k, before RoPE
  std::vector<float> hidden;        // [tokens, hidden_dim], the attention layer's input, after its norm
  std::vector<float> gradient;      // [tokens], of an extra pass with a backward pass: norms of gradients after the layer's attention
  std::vector<float> w_o;           // [hidden_dim, q_heads * head_dim], the output projection as the model stores it
  std::vector<float> w_q, b_q;      // [q_heads * head_dim, hidden_dim] and [q_heads * head_dim], the projection to queries and its bias
};

// A part of an extra pass: its tokens [begin, end) ran over the whole prompt's cache and their own earlier tokens, and what
// they attend to is read off the prompt's tokens [ctx_begin, ctx_end).
struct PassChunk {
  std::int32_t begin = 0, end = 0, ctx_begin = 0, ctx_end = 0;
  bool operator==(const PassChunk&) const = default;
};

// A forward pass recorded beside the sample, for policies that ask for one (reconstruction, pseudo queries). Its layers hold q,
// k, v and, where recorded, hidden and gradient only, with the pass's tokens in place of the sample's.
struct ExtraPass {
  std::int32_t num_tokens = 0;
  std::vector<std::int32_t> ids;  // [num_tokens], or empty
  std::vector<PassChunk> chunks;  // side by side from 0 to num_tokens
  std::vector<LayerTensors> layers;
};

// One sample of recorded attention: a prompt and the tokens decoded after it.
struct AttentionTrace {
  std::string name;  // of the file, without folder and ending
  std::string model, task;
  std::string made_for;  // the settings that it was made for, a line each; empty: not stated
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t hidden_dim = 0;  // 0: neither hidden nor w_o nor w_q was recorded
  std::int32_t num_tokens = 0, prompt_tokens = 0;
  std::vector<std::int32_t> chunk_ends;                        // ends of the prefill's chunks; the last is prompt_tokens
  std::vector<std::int32_t> ids;                               // [num_tokens], or empty
  double rope_base = 0;                                        // 0: the model has no RoPE
  std::string rope_scaling = "none";                           // or the model's JSON object
  std::vector<std::pair<std::int32_t, std::int32_t>> needles;  // [begin, end) of prompt tokens that hold the answer
  std::int32_t question_begin = -1;                            // prompt token where the question starts; -1: not stated
  std::vector<LayerTensors> layers;
  std::map<std::string, ExtraPass> passes;
};

enum class TraceFloat : std::uint8_t { kF32, kF16 };

// Reads and checks one sample (docs/attention-traces.md has the layout). Errors (InputError): all of the safetensors reader's; a
// tensor or key that is unknown or missing; shapes that do not fit together; spans, chunk ends and pass chunks out of place.
AttentionTrace read_attention_trace(const std::string& path);

// The same from an open file; `name` becomes the trace's.
AttentionTrace attention_trace_from(const SafetensorsFile& file, const std::string& name);

// The same checks, then the file. `dtype` is that of all floats.
void write_attention_trace(const std::string& path, const AttentionTrace& trace, TraceFloat dtype);

// Stops with "WHERE: message" unless the parts of the trace fit together.
void check_attention_trace(const AttentionTrace& trace, const std::string& where);

}  // namespace kvlab
