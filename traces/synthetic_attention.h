#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "traces/attention_trace.h"

namespace kvlab {

// Mean, linear from first to last layer.
struct LayerShare {
  double first_frac = 0, last_frac = 0;
};

struct SyntheticAttentionShape {
  std::int32_t layers = 1, q_heads = 1, kv_heads = 1, head_dim = 64;
  std::int32_t prompt_tokens = 1, decode_tokens = 0;
  std::int32_t chunk_tokens = 0;  // of prefill; 0: one chunk
  std::int32_t sink_tokens = 0, recent_tokens = 1;
  std::int32_t needles = 0, needle_tokens = 1, question_tokens = 0;
  std::int32_t recurrence_period_tokens = 2;
  std::int32_t outlier_channels = 0;
  double outlier_scale = 1;
  double heavy_tokens_frac = 0, recurring_tokens_frac = 0, retrieval_heads_frac = 1;
  LayerShare sink, recent, heavy, recurring, needle;
  double noise_first = 0, noise_last = 0;  // of q.k / sqrt(d), ordinary tokens
};

// docs/attention-traces.md.
SyntheticAttentionShape read_synthetic_attention(Params& p);

// "" if valid.
std::string problem_of(const SyntheticAttentionShape& shape);

enum class TokenRole : std::uint8_t { kOrdinary, kSink, kNeedle, kHeavy, kRecurring };

// In softmax(q.k / sqrt(d)) itself: sinks with small values, heavy hitters, recency as a power of distance, recurrence every p-th step,
// needles for the question and later tokens, outlier channels of K, diffuse to concentrated layers. No RoPE (rope_base 0).
class SyntheticAttention {
 public:
  // Throws InternalError for an invalid shape.
  SyntheticAttention(const SyntheticAttentionShape& shape, std::uint64_t seed);

  [[nodiscard]] AttentionTrace trace() const;
  // Without layers, and one layer.
  [[nodiscard]] AttentionTrace outline() const;
  [[nodiscard]] LayerTensors layer(std::int32_t layer) const;

  [[nodiscard]] std::vector<TokenRole> roles(std::int32_t layer, std::int32_t kv_head) const;  // [num_tokens]
  [[nodiscard]] bool retrieves(std::int32_t layer, std::int32_t kv_head) const;
  [[nodiscard]] std::int32_t num_tokens() const { return shape_.prompt_tokens + shape_.decode_tokens; }

 private:
  class Rotation;
  struct Strengths;
  class Head;
  // By ordinary tokens seen minus one: preference for near tokens, log of the ordinary softmax sum.
  struct Recency {
    std::vector<double> strength, log_sum;
  };

  [[nodiscard]] std::int32_t question_begin() const { return shape_.prompt_tokens - shape_.question_tokens; }
  [[nodiscard]] double between(double first, double last, std::int32_t layer) const;
  [[nodiscard]] double share(const LayerShare& of, std::int32_t layer) const { return between(of.first_frac, of.last_frac, layer); }
  [[nodiscard]] double noise(std::int32_t layer) const { return between(shape_.noise_first, shape_.noise_last, layer); }
  [[nodiscard]] Recency recency(std::int32_t layer) const;
  [[nodiscard]] double recency_strength(double share, std::int32_t tokens) const;
  [[nodiscard]] double sum_by_distance(double strength, std::int32_t begin, std::int32_t end) const;
  void place_needles();
  void tabulate_waves();
  void tabulate_beat();

  SyntheticAttentionShape shape_;
  std::uint64_t seed_;
  std::vector<std::pair<std::int32_t, std::int32_t>> needles_;
  std::size_t num_waves_;
  std::vector<float> waves_;           // [num_tokens, num_waves_, 2]: cos and sin of position * frequency
  std::vector<float> beat_;            // [period, 4]: cos and sin of the phase and its double
  std::vector<double> nearness_;       // [num_tokens] by distance: from 1, like the logarithm
  std::vector<double> log_beat_mean_;  // by strength: log of a period's mean of exp(strength * beat)
};

}  // namespace kvlab
