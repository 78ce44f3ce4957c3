#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <compare>
#include <functional>

#include "base/random.h"
#include "policies/kv/forward_passes.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "sim/kv_cost/shape_run.h"
#include "sim/replay/replay.h"
#include "tests/error_of.h"
#include "tests/kv/plain_math.h"
#include "tests/recipes_in.h"
#include "traces/synthetic_attention.h"

// One recipe in two hosts: samples with all that recipes may observe, and the same steps on recorded tensors and on shapes.
namespace kvlab::test {

struct SampleShape {
  std::int32_t layers = 3, q_heads = 4, kv_heads = 2, head_dim = 32, prompt = 200, decode = 24;
  std::int32_t chunk = 90;  // of the prefill; 0: whole
  std::uint64_t seed = 5;
  friend auto operator<=>(const SampleShape&, const SampleShape&) = default;
};

inline std::vector<float> sample_normals(std::size_t n, std::uint64_t stream) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(Draw{3, Purpose::kTest, stream, i}.normal());
  return x;
}

// From the options of synthetic attention, as YAML.
inline AttentionTrace synthetic_trace(const std::string& options, std::uint64_t seed = 5) {
  Params p = Params::from_text("{" + options + "}", "synthetic");
  return SyntheticAttention(read_synthetic_attention(p), seed).trace();
}

// Attention with the features of real one where the shape allows it, else of independent normals.
inline AttentionTrace attention_of(const SampleShape& s) {
  if (s.prompt >= 64 && s.head_dim >= 32)
    return synthetic_trace(
        fmt::format("layers: {}, q_heads: {}, kv_heads: {}, head_dim: {}, question_tokens: 16, prompt_tokens: {}, decode_tokens: {}{}",
                    s.layers, s.q_heads, s.kv_heads, s.head_dim, s.prompt, s.decode,
                    s.chunk > 0 ? fmt::format(", chunk_tokens: {}", s.chunk) : ""),
        s.seed);
  AttentionTrace trace;
  trace.name = "normals";
  trace.num_layers = s.layers, trace.q_heads = s.q_heads, trace.kv_heads = s.kv_heads, trace.head_dim = s.head_dim;
  trace.num_tokens = s.prompt + s.decode, trace.prompt_tokens = s.prompt;
  for (std::int32_t end = s.chunk; s.chunk > 0 && end < s.prompt; end += s.chunk) trace.chunk_ends.push_back(end);
  trace.chunk_ends.push_back(s.prompt);
  std::uint64_t stream = s.seed << 16;
  for (std::int32_t l = 0; l < s.layers; ++l) {
    const auto per_head = static_cast<std::size_t>(trace.num_tokens * s.head_dim);
    LayerTensors& t = trace.layers.emplace_back();
    t.q = sample_normals(per_head * static_cast<std::size_t>(s.q_heads), ++stream);
    t.k = sample_normals(per_head * static_cast<std::size_t>(s.kv_heads), ++stream);
    t.v = sample_normals(per_head * static_cast<std::size_t>(s.kv_heads), ++stream);
  }
  return trace;
}

// With pre-RoPE tensors, hidden states, W_o, W_q, ids and a question besides.
inline AttentionTrace sample(const SampleShape& s) {
  AttentionTrace trace = attention_of(s);
  trace.hidden_dim = 48;
  for (std::int32_t t = 0; t < trace.num_tokens; ++t) trace.ids.push_back(t * 7 % 31);
  trace.question_begin = std::max(s.prompt / 2, s.prompt - 16);
  std::uint64_t stream = 0;
  for (LayerTensors& l : trace.layers) {
    l.pre_q = l.q, l.pre_k = l.k;
    l.hidden = sample_normals(static_cast<std::size_t>(trace.num_tokens * trace.hidden_dim), ++stream);
    l.w_o = sample_normals(static_cast<std::size_t>(trace.hidden_dim * trace.q_heads * trace.head_dim), ++stream);
    l.w_q = sample_normals(l.w_o.size(), 500 + stream);
  }
  return trace;
}

// A pass of 40 tokens over the prompt, in two chunks where it has two tokens.
inline void add_pass(AttentionTrace& trace, const std::string& name) {
  ExtraPass pass;
  pass.num_tokens = 40;
  const std::int32_t n = trace.prompt_tokens, half = n / 2;
  pass.chunks = {{0, 40, 0, n}};
  if (half > 0) pass.chunks = {{0, 20, 0, half}, {20, 40, half, n}};
  std::uint64_t stream = 1000;
  for (std::int32_t l = 0; l < trace.num_layers; ++l) {
    LayerTensors& t = pass.layers.emplace_back();
    t.q = sample_normals(static_cast<std::size_t>(40 * trace.q_heads * trace.head_dim), ++stream);
    t.k = sample_normals(static_cast<std::size_t>(40 * trace.kv_heads * trace.head_dim), ++stream);
    t.v = sample_normals(static_cast<std::size_t>(40 * trace.kv_heads * trace.head_dim), ++stream);
    t.hidden = sample_normals(static_cast<std::size_t>(40 * trace.hidden_dim), ++stream);
    if (!has_backward(name)) continue;
    t.gradient = sample_normals(40, ++stream);
    for (float& g : t.gradient) g = std::abs(g);
  }
  for (std::int32_t t = 0; t < 40; ++t) pass.ids.push_back(t % 31);
  trace.passes[name] = pass;
}

inline void add_passes(AttentionTrace& trace) {
  for (const char* name : {"reconstruct", "reconstruct_gradient", "lookahead", "repeat"}) add_pass(trace, name);
}

// A recording and what attending to all of it gives.
struct Sampled {
  AttentionTrace trace;
  AttentionReference reference;
  [[nodiscard]] ReplayResult replayed(const Recipe& recipe) const { return replay(trace, reference, recipe); }
};
inline Sampled with_reference(const AttentionTrace& trace) { return {trace, full_attention(trace)}; }
// A sample with the passes, made once for all tests.
inline const Sampled& sampled(const SampleShape& s) {
  static std::map<SampleShape, Sampled> made;
  const auto [at, is_new] = made.try_emplace(s);
  if (is_new) {
    AttentionTrace trace = sample(s);
    add_passes(trace);
    at->second = with_reference(trace);
  }
  return at->second;
}

// The sample's steps: ends of the prompt's chunks, then of decode.
inline std::vector<std::int32_t> step_ends(const AttentionTrace& trace) {
  std::vector<std::int32_t> ends = trace.chunk_ends;
  for (std::int32_t t = trace.prompt_tokens; t < trace.num_tokens; ++t) ends.push_back(t + 1);
  return ends;
}

// The same steps on shapes.
struct ShapeReplay {
  std::vector<OpCall> calls;
  std::vector<TierBytes> resident;
  std::vector<std::vector<std::int32_t>> held;  // [step][layer * kv_heads + head]
};
inline ShapeReplay replay_shapes(const AttentionTrace& trace, const Recipe& recipe, CountSource* counts) {
  ShapeRun run(recipe, shape_of(trace, 2), counts);
  ShapeReplay all;
  std::vector<std::int32_t> held;
  std::int32_t begin = 0;
  for (const std::int32_t end : step_ends(trace)) {
    ShapeRun::Seq seq{begin, end - begin, trace.prompt_tokens, held, {trace.question_begin, trace.num_tokens - end, {}}};
    if (const std::string& name = run.policy().needs().pass; !name.empty())
      for (const PassChunk& c : trace.passes.at(name).chunks) seq.inputs.pass.push_back({c.end - c.begin, c.begin, c.ctx_begin, c.ctx_end});
    const ShapeRun::Result result = run.step(std::span(&seq, 1));
    all.calls.insert(all.calls.end(), result.calls.begin(), result.calls.end());
    all.resident.push_back(result.after);
    all.held.push_back(result.held);
    held = result.held, begin = end;
  }
  return all;
}

// Serving charges this for a step of this batch, or of one sequence.
inline PolicyWork work_of(RecipeFootprint& footprint, std::vector<SeqState>& batch) {
  PolicyWork work;
  footprint.charge(batch, work);
  return work;
}
inline PolicyWork work_of(RecipeFootprint& footprint, const SeqState& seq) {
  std::vector<SeqState> batch{seq};
  return work_of(footprint, batch);
}

inline std::string words(const OpCall& c) {
  return fmt::format("{} rows {} tokens {} outputs {} bytes {} flops {}", c.op, c.rows, c.tokens, c.outputs, c.bytes, c.flops);
}

inline void expect_same_calls(const std::vector<OpCall>& shapes, const std::vector<OpCall>& data) {
  for (std::size_t i = 0; i < std::min(shapes.size(), data.size()); ++i) ASSERT_EQ(words(shapes[i]), words(data[i])) << "call " << i;
  ASSERT_EQ(shapes.size(), data.size());
}

// Expects that the cost host charges what replay executes, call by call and byte by byte. Returns replay's result.
inline ReplayResult expect_cost_is_replay(const AttentionTrace& trace, const AttentionReference& reference, const Recipe& recipe) {
  Ops ops(Ops::Backend::kCpu);
  RecordedCounts recorded;
  ReplayResult result = replay(trace, reference, recipe, {.ops = &ops, .counts = &recorded});
  if (!recipe.runs_in("cost")) return result;
  ScriptedCounts script(recorded.entries());
  const ShapeReplay shapes = replay_shapes(trace, recipe, recorded.entries().empty() ? nullptr : &script);
  expect_same_calls(shapes.calls, ops.log());
  EXPECT_TRUE(script.used_up());
  EXPECT_EQ(shapes.resident.size(), result.resident.size());
  EXPECT_TRUE(shapes.resident == result.resident);
  EXPECT_FALSE(ops.log().empty());
  return result;
}
inline ReplayResult expect_cost_is_replay(const AttentionTrace& trace, const Recipe& recipe) {
  return expect_cost_is_replay(trace, full_attention(trace), recipe);
}

// The recipe's replay with lists of the tokens that stay.
inline ReplayResult replay_listed(const std::string& recipe, const AttentionTrace& trace) {
  return replay(trace, full_attention(trace), recipe_of(recipe), {.lists_kept = true});
}

// Without trained tensors the recipe computes nothing, but costs what it would: the operations of `op` for a prompt of 300 tokens.
inline std::int64_t flops_without_weights(const std::string& recipe, std::string_view op,
                                          const ShapeRun::Seq& seq = {0, 300, 300, {0}, {}}) {
  const std::string name = "{recipe: " + recipe + "}", why = error_of([&] { replay_listed(name, sample({})); });
  EXPECT_TRUE(why.starts_with("recipe '" + recipe + "' cannot run: it needs trained tensors, write 'weights: FILE'; to be had: ")) << why;
  ShapeRun run(recipe_of(name), {2, 8, 2, 64, 100});
  std::int64_t flops = 0;
  for (const OpCall& c : run.step(std::span(&seq, 1)).calls) flops += c.op == op ? c.flops : 0;
  return flops;
}

// A policy at work over a sample.
class PolicyWalk {
 public:
  using Look = std::function<void(const PolicyStep&, std::int32_t layer)>;

  PolicyWalk(const AttentionTrace& trace, const Recipe& recipe, std::uint64_t seed = 1)
      : model(shape_of(trace, 2)), policy(recipe, model), trace_(trace), observer_(trace, policy.needs()), seed_(seed) {
    for (std::int32_t l = 0; l < model.num_layers; ++l) stores.emplace_back(model, 1, policy.num_words(), true);
  }
  // In each layer `look` comes after the new tokens are appended and before the policy acts.
  void step(const SeqStep& seq, const Look& look) {
    observer_.set_step(seq);
    const PolicyStep step{ops, model, std::span(&seq, 1), stores, observer_, seed_};
    for (std::int32_t l = 0; l < model.num_layers; ++l) {
      const LayerTensors& t = nth(trace_.layers, l);
      const auto at = static_cast<std::ptrdiff_t>(seq.seen_tokens) * model.kv_heads * model.head_dim;
      nth(stores, l).append(0, t.k.data() + at, t.v.data() + at, seq.new_tokens, seq.seen_tokens);
      const Ops::Frame frame(ops);
      look(step, l);
      policy.after_attention(step, l);
    }
  }
  // Prompt and decode steps.
  void run(const Look& look) {
    std::int32_t begin = 0;
    for (const std::int32_t end : step_ends(trace_)) {
      step({0, begin, end - begin, trace_.prompt_tokens, trace_.question_begin}, look);
      begin = end;
    }
  }
  // The attention of a decode step over `segments`, which it fills.
  const float* attend(const PolicyStep& step, std::int32_t layer) {
    policy.before_attention(step, layer, segments);
    const std::int64_t width = std::int64_t{model.q_heads} * model.head_dim, at = step.seqs.front().seen_tokens;
    const Queries query{nth(trace_.layers, layer).q.data() + at * width, 1, static_cast<std::int32_t>(at)};
    float* out = ops.floats(width);
    ops(Attend{segments.data(), static_cast<std::int32_t>(segments.size()), &query, &out, nullptr, nullptr});
    return out;
  }

  ModelShape model;
  KvPolicy policy;
  Ops ops{Ops::Backend::kCpu};
  std::vector<KvStore> stores;  // [layer]
  std::vector<Segment> segments;

 private:
  const AttentionTrace& trace_;
  TraceObserver observer_;
  std::uint64_t seed_;
};

}  // namespace kvlab::test
