#include <fmt/format.h>

#include "traces/synthetic_attention.h"

namespace kvlab {

namespace {

LayerShare read_share(Params& p, const std::string& name, LayerShare fallback, const std::string& meaning) {
  LayerShare share;
  share.first_frac = p.optional<double>(name + "_first_frac", fallback.first_frac, 0, 0.98, "share of attention, first layer: " + meaning);
  share.last_frac = p.optional<double>(name + "_last_frac", fallback.last_frac, 0, 0.98, "the same in the last layer");
  return share;
}

void read_sizes(Params& p, SyntheticAttentionShape& shape) {
  constexpr std::int32_t kMost = 1 << 20;
  shape.layers = p.required<std::int32_t>("layers", 1, 1024, "layers");
  shape.q_heads = p.required<std::int32_t>("q_heads", 1, 1024, "query heads; a multiple of kv_heads");
  shape.kv_heads = p.required<std::int32_t>("kv_heads", 1, 1024, "KV heads");
  shape.head_dim = p.optional<std::int32_t>("head_dim", 64, 32, 512, "channels of a head; a multiple of 8");
  shape.prompt_tokens = p.required<std::int32_t>("prompt_tokens", 1, kMost, "prompt length, the question included");
  shape.decode_tokens = p.optional<std::int32_t>("decode_tokens", 32, 0, kMost, "tokens decoded after the prompt");
  shape.chunk_tokens = p.optional<std::int32_t>("chunk_tokens", 0, 0, kMost, "chunks of the prefill; 0: one");
}

void read_tokens(Params& p, SyntheticAttentionShape& shape) {
  constexpr std::int32_t kMost = 1 << 20;
  shape.sink_tokens = p.optional<std::int32_t>("sink_tokens", 4, 0, kMost, "first tokens, with small values, that every query attends to");
  shape.recent_tokens = p.optional<std::int32_t>("recent_tokens", 64, 1, kMost, "distance that the share of recent tokens refers to");
  shape.heavy_tokens_frac = p.optional<double>("heavy_tokens_frac", 0.02, 0, 0.4, "tokens that all later queries attend to");
  shape.recurring_tokens_frac = p.optional<double>("recurring_tokens_frac", 0.01, 0, 0.4, "tokens attended to every period");
  shape.recurrence_period_tokens = p.optional<std::int32_t>("recurrence_period_tokens", 64, 2, kMost, "that period");
  shape.needles = p.optional<std::int32_t>("needles", 2, 0, kMost, "spans of the prompt that the question looks for");
  shape.needle_tokens = p.optional<std::int32_t>("needle_tokens", 8, 1, kMost, "tokens of a needle");
  shape.question_tokens = p.optional<std::int32_t>("question_tokens", 32, 0, kMost, "last tokens of the prompt");
  shape.retrieval_heads_frac = p.optional<double>("retrieval_heads_frac", 0.5, 0, 1, "KV heads whose queries look for the needles");
}

}  // namespace

std::string problem_of(const SyntheticAttentionShape& shape) {
  if (shape.q_heads % shape.kv_heads != 0)
    return fmt::format("q_heads = {} is no multiple of kv_heads = {}", shape.q_heads, shape.kv_heads);
  if (shape.head_dim < 32 || shape.head_dim % 8 != 0) return fmt::format("head_dim = {} is no multiple of 8 from 32", shape.head_dim);
  if (shape.outlier_channels > shape.head_dim / 8) {
    return fmt::format("outlier_channels = {} exceeds an eighth of head_dim = {}", shape.outlier_channels, shape.head_dim);
  }
  if (shape.question_tokens >= shape.prompt_tokens) {
    return fmt::format("question_tokens = {} leaves nothing of prompt_tokens = {}", shape.question_tokens, shape.prompt_tokens);
  }
  const std::int64_t body = std::int64_t{shape.prompt_tokens} - shape.question_tokens - shape.sink_tokens;
  if (const std::int64_t needed = std::int64_t{shape.needles} * shape.needle_tokens; needed > body && shape.needles > 0) {
    return fmt::format("{} needles of {} tokens do not fit into {} prompt tokens between sinks and question", shape.needles,
                       shape.needle_tokens, body);
  }
  constexpr double kMostShare = 0.98;
  const double first =
      shape.sink.first_frac + shape.recent.first_frac + shape.heavy.first_frac + shape.recurring.first_frac + shape.needle.first_frac;
  const double last =
      shape.sink.last_frac + shape.recent.last_frac + shape.heavy.last_frac + shape.recurring.last_frac + shape.needle.last_frac;
  if (first > kMostShare) return fmt::format("the shares of the first layer add up to {:.3g}; at most {} is allowed", first, kMostShare);
  if (last > kMostShare) return fmt::format("the shares of the last layer add up to {:.3g}; at most {} is allowed", last, kMostShare);
  return "";
}

SyntheticAttentionShape read_synthetic_attention(Params& p) {
  SyntheticAttentionShape shape;
  read_sizes(p, shape);
  read_tokens(p, shape);
  shape.sink = read_share(p, "sink", {0.05, 0.4}, "sinks");
  shape.recent = read_share(p, "recent", {0.1, 0.25}, "the nearest recent_tokens");
  shape.heavy = read_share(p, "heavy", {0.05, 0.12}, "heavy hitters");
  shape.recurring = read_share(p, "recurring", {0.02, 0.05}, "recurring tokens, averaged over a period");
  shape.needle = read_share(p, "needle", {0.01, 0.1}, "needles, of the question and what follows it, in retrieval heads");
  shape.noise_first = p.optional<double>("noise_first", 0.5, 0, 3, "deviation of an ordinary token's score, first layer");
  shape.noise_last = p.optional<double>("noise_last", 1.5, 0, 3, "the same in the last layer");
  shape.outlier_channels = p.optional<std::int32_t>("outlier_channels", 2, 0, 64, "channels of K, per head, that are large in every token");
  shape.outlier_scale = p.optional<double>("outlier_scale", 10, 1, 1000, "size of these channels; the others' deviation is about 1");
  p.reject_unread();
  if (p.is_describing()) return shape;
  if (const std::string problem = problem_of(shape); !problem.empty()) p.fail(problem);
  return shape;
}

}  // namespace kvlab
