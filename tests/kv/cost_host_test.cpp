#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "policies/kv/count_sources.h"
#include "policies/kv/shape_run.h"
#include "sim/replay/replay.h"
#include "sim/replay/trace_observer.h"
#include "traces/synthetic_attention.h"

namespace kvlab {
namespace {

// A small sample with all that recipes may observe: pre-RoPE tensors, hidden states, W_o, ids, a question and an extra pass by any name.
AttentionTrace sample(std::int32_t prompt, std::int32_t decode) {
  Params p =
      Params::from_text("{layers: 3, q_heads: 4, kv_heads: 2, head_dim: 32, question_tokens: 16, prompt_tokens: " + std::to_string(prompt) +
                            ", chunk_tokens: 90, decode_tokens: " + std::to_string(decode) + "}",
                        "synthetic");
  AttentionTrace trace = SyntheticAttention(read_synthetic_attention(p), 5).trace();
  trace.hidden_dim = 48;
  const auto normals = [&](std::size_t n, std::uint64_t stream) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(Draw{3, Purpose::kTest, stream, i}.normal());
    return x;
  };
  for (std::int32_t t = 0; t < trace.num_tokens; ++t) trace.ids.push_back(t * 7 % 31);
  trace.question_begin = prompt - 16;
  std::uint64_t stream = 0;
  for (LayerTensors& l : trace.layers) {
    l.pre_q = l.q, l.pre_k = l.k;
    l.hidden = normals(static_cast<std::size_t>(trace.num_tokens * trace.hidden_dim), ++stream);
    l.w_o = normals(static_cast<std::size_t>(trace.hidden_dim * trace.q_heads * trace.head_dim), ++stream);
  }
  return trace;
}

// A pass over the prompt in two chunks.
void add_pass(AttentionTrace& trace, const std::string& name) {
  ExtraPass pass;
  pass.num_tokens = 40;
  pass.chunks = {{0, 20, 0, trace.prompt_tokens / 2}, {20, 40, trace.prompt_tokens / 2, trace.prompt_tokens}};
  for (const LayerTensors& l : trace.layers) {
    LayerTensors t;
    t.q.assign(l.q.begin(), l.q.begin() + 40 * trace.q_heads * trace.head_dim);
    t.k.assign(l.k.begin(), l.k.begin() + 40 * trace.kv_heads * trace.head_dim);
    t.v.assign(l.v.begin(), l.v.begin() + 40 * trace.kv_heads * trace.head_dim);
    t.hidden.assign(l.hidden.begin(), l.hidden.begin() + 40 * trace.hidden_dim);
    pass.layers.push_back(t);
  }
  for (std::int32_t t = 0; t < 40; ++t) pass.ids.push_back(t % 31);
  trace.passes[name] = pass;
}

// The same steps on shapes.
struct ShapeReplay {
  std::vector<OpCall> calls;
  std::vector<TierBytes> resident;
};
ShapeReplay walk(const AttentionTrace& trace, const Recipe& recipe, CountSource* counts) {
  ShapeRun run(recipe, shape_of(trace, 2), counts);
  ShapeReplay all;
  std::vector<std::int32_t> ends = trace.chunk_ends, held;
  for (std::int32_t t = trace.prompt_tokens; t < trace.num_tokens; ++t) ends.push_back(t + 1);
  std::int32_t begin = 0;
  for (const std::int32_t end : ends) {
    ShapeRun::Seq seq{begin, end - begin, trace.prompt_tokens, held, {trace.question_begin, trace.num_tokens - end, {}}};
    if (const std::string& name = run.policy().needs().pass; !name.empty())
      for (const PassChunk& c : trace.passes.at(name).chunks) seq.extras.pass.push_back({c.end - c.begin, c.begin, c.ctx_begin, c.ctx_end});
    const ShapeRun::Result result = run.step(std::span(&seq, 1));
    all.calls.insert(all.calls.end(), result.calls.begin(), result.calls.end());
    all.resident.push_back(result.after);
    held = result.held, begin = end;
  }
  return all;
}

std::string words(const OpCall& c) {
  return std::string(c.op) + " rows " + std::to_string(c.rows) + " tokens " + std::to_string(c.tokens) + " outputs " +
         std::to_string(c.outputs) + " bytes " + std::to_string(c.bytes) + " flops " + std::to_string(c.flops);
}

void expect_same(const std::vector<OpCall>& shapes, const std::vector<OpCall>& data) {
  for (std::size_t i = 0; i < std::min(shapes.size(), data.size()); ++i) ASSERT_EQ(words(shapes[i]), words(data[i])) << "call " << i;
  ASSERT_EQ(shapes.size(), data.size());
}

std::vector<std::string> both_hosts() {
  std::vector<std::string> names;
  for (const std::string& name : recipe_names()) {
    const Recipe recipe = load_recipe(name);
    if (recipe.runs_in("replay") && recipe.runs_in("cost")) names.push_back(name);
  }
  return names;
}

class CostHost : public testing::TestWithParam<std::string> {};

// What the cost host charges is what replay executes, call by call and byte by byte.
TEST_P(CostHost, ChargesWhatReplayExecutes) {
  for (const std::int32_t budget : {130, 1024}) {  // the smaller one is above what any recipe always keeps
    Recipe recipe = load_recipe(GetParam());
    const bool overridden = recipe.has_budget || recipe.selector != "all";
    if (overridden) recipe = load_recipe(GetParam(), budget);
    AttentionTrace trace = sample(200, 24);
    const Needs needs = KvPolicy(recipe, shape_of(trace, 2)).needs();
    if (!needs.pass.empty()) add_pass(trace, needs.pass);
    Ops ops(Ops::Backend::kCpu);
    RecordedCounts recorded;
    ReplayOptions options;
    options.ops = &ops;
    options.counts = &recorded;
    const ReplayResult result = replay(trace, full_attention(trace), recipe, options);
    ScriptedCounts script(recorded.entries());
    const ShapeReplay shapes = walk(trace, recipe, recorded.entries().empty() ? nullptr : &script);
    expect_same(shapes.calls, ops.log());
    EXPECT_TRUE(script.used_up());
    EXPECT_EQ(shapes.resident.size(), result.resident.size());
    EXPECT_TRUE(shapes.resident == result.resident);
    EXPECT_FALSE(ops.log().empty());
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Recipes, CostHost, testing::ValuesIn(both_hosts()), test_name);

}  // namespace
}  // namespace kvlab
