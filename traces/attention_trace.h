#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/safetensors.h"

namespace kvlab {

// One layer's recorded tensors, row-major; empty if not recorded (q, k and v always are). Post-RoPE unless `pre_`; K and V per KV head.
struct LayerTensors {
  std::vector<float> q;             // [tokens, q_heads, head_dim]
  std::vector<float> k, v;          // [tokens, kv_heads, head_dim]
  std::vector<float> pre_q, pre_k;  // as q and k, before RoPE
  std::vector<float> hidden;        // [tokens, hidden_dim], normed input of the attention
  std::vector<float> gradient;      // [tokens], gradient norms after the layer's attention, if the pass ran backward
  std::vector<float> w_o;           // [hidden_dim, q_heads * head_dim], as the model stores it
  std::vector<float> w_q, b_q;      // [q_heads * head_dim, hidden_dim], [q_heads * head_dim]: query projection and bias
};

// Tokens [begin, end) of a pass, run over the whole prompt's cache; their attention to prompt tokens [ctx_begin, ctx_end) counts.
struct PassChunk {
  std::int32_t begin = 0, end = 0, ctx_begin = 0, ctx_end = 0;
  bool operator==(const PassChunk&) const = default;
};

// A forward pass for policies that need one. Its layers hold q, k, v and optionally hidden and gradient, of the pass's tokens.
struct ExtraPass {
  std::int32_t num_tokens = 0;
  std::vector<std::int32_t> ids;  // [num_tokens], or empty
  std::vector<PassChunk> chunks;  // adjacent, from 0 to num_tokens
  std::vector<LayerTensors> layers;
};

// One sample: a prompt and the tokens decoded after it.
struct AttentionTrace {
  std::string name;  // file name without extension
  std::string model, task;
  std::string made_for;  // settings, one per line; may be empty
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t hidden_dim = 0;  // 0: no hidden, w_o or w_q
  std::int32_t num_tokens = 0, prompt_tokens = 0;
  std::vector<std::int32_t> chunk_ends;                        // ends of prefill chunks; the last is prompt_tokens
  std::vector<std::int32_t> ids;                               // [num_tokens], or empty
  double rope_base = 0;                                        // 0: no RoPE
  std::string rope_scaling = "none";                           // or the model's JSON object
  std::vector<std::pair<std::int32_t, std::int32_t>> needles;  // [begin, end) of prompt tokens with the answer
  std::int32_t question_begin = -1;                            // prompt token; -1: unknown
  std::vector<LayerTensors> layers;
  std::map<std::string, ExtraPass> passes;
};

enum class TraceFloat : std::uint8_t { kF32, kF16 };

// Reads and checks one sample (docs/attention-traces.md). Throws InputError for bad safetensors, unknown, missing or mismatched tensors and
// keys, and misplaced spans or chunks.
AttentionTrace read_attention_trace(const std::string& path);

// From an open file.
AttentionTrace attention_trace_from(const SafetensorsFile& file, const std::string& name);

// Checks, then writes with all floats as `dtype`.
void write_attention_trace(const std::string& path, const AttentionTrace& trace, TraceFloat dtype);

// Throws "WHERE: message" unless the trace's parts fit together.
void check_attention_trace(const AttentionTrace& trace, const std::string& where);

}  // namespace kvlab
