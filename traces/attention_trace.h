#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/safetensors.h"

namespace kvlab {

inline constexpr std::string_view kAttentionFormat = "kvlab-attention-trace-1";

// Between dots in tensor names.
inline bool is_pass_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !name.empty() && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

// Row-major; empty if not recorded (q, k and v always are). Post-RoPE unless `pre_`.
struct LayerTensors {
  std::vector<float> q;             // [tokens, q_heads, head_dim]
  std::vector<float> k, v;          // [tokens, kv_heads, head_dim]
  std::vector<float> pre_q, pre_k;  // as q and k, before RoPE
  std::vector<float> hidden;        // [tokens, hidden_dim], normed attention input
  std::vector<float> gradient;      // [tokens], norms after attention, if the pass ran backward
  std::vector<float> w_o;           // [hidden_dim, q_heads * head_dim]
  std::vector<float> w_q, b_q;      // [q_heads * head_dim, hidden_dim], [q_heads * head_dim]
};

// Runs over the whole prompt's cache; attention to [ctx_begin, ctx_end) counts.
struct PassChunk {
  std::int32_t begin = 0, end = 0, ctx_begin = 0, ctx_end = 0;
  bool operator==(const PassChunk&) const = default;
};

struct ExtraPass {
  std::int32_t num_tokens = 0;
  std::vector<std::int32_t> ids;  // [num_tokens], or empty
  std::vector<PassChunk> chunks;  // adjacent, from 0 to num_tokens
  std::vector<LayerTensors> layers;
};

struct AttentionTrace {
  std::string name;  // file name, no extension
  std::string model, task;
  std::string made_for;  // settings, one per line
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t hidden_dim = 0;  // 0: no hidden, w_o or w_q
  std::int32_t num_tokens = 0, prompt_tokens = 0;
  std::vector<std::int32_t> chunk_ends;                        // of prefill; the last is prompt_tokens
  std::vector<std::int32_t> ids;                               // [num_tokens], or empty
  double rope_base = 0;                                        // 0: no RoPE
  std::string rope_scaling = "none";                           // or a JSON object
  std::vector<std::pair<std::int32_t, std::int32_t>> needles;  // [begin, end) of prompt tokens with the answer
  std::int32_t question_begin = -1;                            // prompt token; -1: unknown
  std::vector<LayerTensors> layers;
  std::map<std::string, ExtraPass> passes;
};

// A tensor of all layers or, unless required, of none: L0.q, in passes pass.NAME.L0.q, of weights W_o.L0.
struct LayerTensorKind {
  enum class In : std::uint8_t { kAll, kPrompt, kPasses, kWeights };
  std::string_view name;
  std::vector<float> LayerTensors::*values;
  std::string_view extents;  // t tokens, q query heads, k KV heads, d channels of a head, h hidden channels, w channels of all query heads
  In in = In::kAll;

  [[nodiscard]] bool is_required() const { return name.size() == 1; }
  [[nodiscard]] bool is_of(bool passes) const { return in == In::kAll || (in == In::kPasses) == passes; }
  // `before`: "", or of a pass.
  [[nodiscard]] std::string name_in(const std::string& before, std::size_t layer) const;
  [[nodiscard]] std::vector<std::int64_t> shape(const AttentionTrace& trace, std::int64_t tokens) const;
};
// In the order written.
inline constexpr LayerTensorKind kLayerTensors[] = {{"q", &LayerTensors::q, "tqd"},
                                                    {"k", &LayerTensors::k, "tkd"},
                                                    {"v", &LayerTensors::v, "tkd"},
                                                    {"hidden", &LayerTensors::hidden, "th"},
                                                    {"pre_q", &LayerTensors::pre_q, "tqd", LayerTensorKind::In::kPrompt},
                                                    {"pre_k", &LayerTensors::pre_k, "tkd", LayerTensorKind::In::kPrompt},
                                                    {"W_o", &LayerTensors::w_o, "hw", LayerTensorKind::In::kWeights},
                                                    {"W_q", &LayerTensors::w_q, "wh", LayerTensorKind::In::kWeights},
                                                    {"b_q", &LayerTensors::b_q, "w", LayerTensorKind::In::kWeights},
                                                    {"gradient", &LayerTensors::gradient, "t", LayerTensorKind::In::kPasses}};

enum class TraceFloat : std::uint8_t { kF32, kF16 };

// Reads one sample (docs/attention-traces.md). Throws InputError for bad safetensors, unknown, missing or mismatched tensors and keys,
// misplaced spans or chunks.
AttentionTrace read_attention_trace(const std::string& path);

AttentionTrace attention_trace_from(const SafetensorsFile& file, const std::string& name);

// Checks, then writes floats as `dtype`.
void write_attention_trace(const std::string& path, const AttentionTrace& trace, TraceFloat dtype);

// Throws "WHERE: message".
void check_attention_trace(const AttentionTrace& trace, const std::string& where);

}  // namespace kvlab
