#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/transformer.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

struct LabelOptions {
  std::uint64_t seed = 1;
  std::int32_t probes = 5;                                   // at evenly spaced depths
  std::int32_t prompt_tokens = 1024;                         // approximately
  std::int32_t chunk_tokens = 0;                             // of prefill; 0: one chunk
  std::int32_t block_tokens = 128, repeats = 4, blocks = 2;  // random tokens
  std::int32_t short_prompts = 8, short_tokens = 64;         // for sinks
  std::int32_t sink_tokens = 64, recent_tokens = 256;        // of a streaming head (DuoAttention)
  double sink_threshold = 0.3;
};

// Scores on generated prompts, mean attention by default. KV heads: the largest of their query heads.
//   retrieval: share of needle tokens emitted with most attention on the same token; retrieval heads: >= 0.1
//     (Wu et al. 2024, arXiv:2404.15574)
//   semantic: on the needle while its tokens are emitted (CompressKV, Lin et al. 2025, arXiv:2508.02401)
//   sink: short prompts' queries on the first token (Gu et al. 2024, arXiv:2410.10781)
//   echo, induction: on earlier copies of the current token, and on the tokens after them
//     (RazorAttention, Tang et al. 2024, arXiv:2407.15891)
//   gates: outside of sink_tokens and recent_tokens during the answer; replaces trained gates
//     (DuoAttention, Xiao et al. 2024, arXiv:2410.10819)
struct HeadLabelScores {
  std::vector<float> retrieval, semantic, sink, echo, induction;  // [layers * q_heads]
  std::vector<float> gates, kv_retrieval, kv_echo, kv_induction;  // [layers * kv_heads]
  double answered_frac = 0;                                       // emitted in place
  double sink_frac = 0;                                           // heads and prompts above sink_threshold
};

// Deterministic. Throws InputError beyond the model's context.
HeadLabelScores label_heads(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options);

// [layers, q_heads] or [layers, kv_heads]; options as metadata.
void write_head_labels(const std::string& path, const ModelConfig& model, const LabelOptions& options, const HeadLabelScores& scores);

// Q-Filters (Godey et al. 2025, arXiv:2503.02812): -u [layers * kv_heads * head_dim], u the top right-singular vector of a KV head's
// post-RoPE queries with mean q.u > 0. Deterministic. Throws InputError without tokens.
std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts);

// Tensor q_filters [layers, kv_heads, head_dim].
void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters);

// Reports softmax of q.k / sqrt(head_dim) in float64.
class HeadRowRecorder final : public Recorder {
 public:
  // row [position + 1]; 0 outside of the window.
  using See = std::function<void(std::int32_t layer, std::int32_t head, std::int32_t position, std::span<const double> row)>;
  enum class Which : std::uint8_t { kAllQueries, kLastQuery };  // of a pass
  HeadRowRecorder(const ModelConfig& config, const KvState& kv, Which which, See see)
      : config_(config), kv_(kv), which_(which), see_(std::move(see)) {}
  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    std::span<const float> out) override;

 private:
  void fill(std::int32_t layer, std::int32_t head, std::int32_t position, const float* q);

  const ModelConfig& config_;
  const KvState& kv_;
  Which which_;
  See see_;
  std::vector<double> row_;
};

}  // namespace kvlab
