#include "engine/model/record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/read_file.h"
#include "engine/model/gradient_tape.h"
#include "kernels/model/rope/rotary.h"
#include "kernels/select/guess_queries/guess_queries.h"
#include "tests/engine/probe.h"
#include "tests/error_of.h"
#include "tests/plain_softmax.h"

namespace kvlab {
namespace {

std::vector<std::int32_t> prompt(std::size_t tokens) {
  std::vector<std::int32_t> ids = golden_logits().ints("0.ids");
  ids.resize(tokens);
  return ids;
}

RecordOptions everything() {
  RecordOptions o;
  o.decode_tokens = 5;
  o.chunk_tokens = 25;
  o.pre_rope = o.hidden = o.w_o = o.w_q = true;
  o.passes = {"reconstruct", "lookahead", "reconstruct_gradient"};
  o.repeat.chunk_tokens = o.repeat.gradient_chunk_tokens = 40;
  return o;
}

std::string error(const std::vector<std::int32_t>& ids, const RecordOptions& options) {
  return error_of([&] { record(probe(), ids, options); });
}

class OutputRecorder final : public Recorder {
 public:
  void on_attention(std::int32_t layer, std::span<const float>, std::span<const float>, std::span<const float>,
                    std::span<const float> out) override {
    outputs.resize(static_cast<std::size_t>(layer) + 1);
    outputs.back().assign(out.begin(), out.end());
  }
  std::vector<std::vector<float>> outputs;
};

// softmax(q k^T / sqrt(d)) v of one query head and token, in double.
std::vector<double> attend(const AttentionTrace& t, const LayerTensors& layer, std::int32_t token, std::int32_t head) {
  const auto d = static_cast<std::size_t>(t.head_dim), kv_heads = static_cast<std::size_t>(t.kv_heads);
  const std::size_t kv_head = static_cast<std::size_t>(head / (t.q_heads / t.kv_heads));
  const float* q = layer.q.data() + static_cast<std::size_t>(token * t.q_heads + head) * d;
  std::vector<double> out(d, 0.0), p;
  for (std::size_t j = 0; j <= static_cast<std::size_t>(token); ++j)
    p.push_back(plain_dot(q, layer.k.data() + (j * kv_heads + kv_head) * d, t.head_dim) / std::sqrt(t.head_dim));
  plain_softmax(p);
  for (std::size_t j = 0; j < p.size(); ++j)
    for (std::size_t c = 0; c < d; ++c) out[c] += p[j] * layer.v[(j * kv_heads + kv_head) * d + c];
  return out;
}

TEST(Record, ItsOwnAttentionIsWhatTheModelSaw) {
  const std::vector<std::int32_t> ids = prompt(70);
  const AttentionTrace trace = record(probe(), ids, {});
  OutputRecorder seen;
  KvState kv(probe().config());
  forward_logits(probe(), ids, kv, &seen);
  ASSERT_EQ(seen.outputs.size(), 8U);
  for (std::size_t l = 0; l < 8; ++l) {
    for (std::int32_t token = 0; token < 70; ++token) {
      for (std::int32_t head = 0; head < 8; ++head) {
        const std::vector<double> expected = attend(trace, trace.layers[l], token, head);
        for (std::size_t c = 0; c < 64; ++c)
          ASSERT_NEAR(seen.outputs[l][static_cast<std::size_t>(token * 8 + head) * 64 + c], expected[c], 2e-5) << l << " " << token;
      }
    }
  }
}

// W_q and a layer's own input give its query; the input of the layer before gives one that is like it.
TEST(Record, QueriesFollowFromInputsAndProjections) {
  const AttentionTrace t = record(probe(), prompt(60), everything());
  const std::int32_t width = t.q_heads * t.head_dim, at = 62;
  const auto guess = [&](std::size_t layer, std::size_t input) {
    const float* const hidden = t.layers[input].hidden.data() + at * t.hidden_dim;
    std::vector<float> cos(32), sin(32), out(static_cast<std::size_t>(width));
    Rotary({t.rope_base}, t.head_dim).fill({&at, 1}, cos.data(), sin.data());
    GuessQueries op{1, t.q_heads, t.head_dim, t.hidden_dim, &hidden, {t.layers[layer].w_q.data()}, cos.data(), sin.data(), out.data()};
    run_cpu(op);
    return out;
  };
  for (const std::size_t layer : {1U, 4U, 7U}) {
    const float* const own = t.layers[layer].q.data() + at * width;
    const std::vector<float> same = guess(layer, layer), before = guess(layer, layer - 1);
    double dot = 0, of_own = 0, of_guess = 0;
    for (std::int32_t c = 0; c < width; ++c) {
      const auto x = static_cast<double>(own[c]), y = static_cast<double>(before[static_cast<std::size_t>(c)]);
      EXPECT_NEAR(same[static_cast<std::size_t>(c)], own[c], 1e-3F * (1 + std::abs(own[c]))) << "layer " << layer;
      dot += x * y, of_own += x * x, of_guess += y * y;
    }
    const double cosine = dot / std::sqrt(of_own * of_guess);
    EXPECT_GT(cosine, 0.4) << "layer " << layer;
    EXPECT_LT(cosine, 0.99) << "layer " << layer;
  }
}

TEST(Record, ShapesAndMetadata) {
  const AttentionTrace t = record(probe(), prompt(60), everything());
  check_attention_trace(t, "trace");
  EXPECT_EQ(std::tuple(t.model, t.prompt_tokens, t.num_tokens), std::tuple("probe", 60, 65));
  EXPECT_EQ(std::tuple(t.chunk_ends, t.rope_base), std::tuple((std::vector<std::int32_t>{25, 50, 60}), 100000));
  EXPECT_EQ(std::tuple(t.layers[7].pre_k.size(), t.layers[7].hidden.size()), std::tuple(65U * 2 * 64, 65U * 384));
  const Weight w_o = probe().weights().layers[7].o;
  EXPECT_EQ(t.layers[7].w_o, std::vector<float>(w_o.begin(), w_o.end()));
  // Position 0 turns by no angle, later ones do; values know no position.
  const std::vector<float>& pre = t.layers[3].pre_k;
  const std::vector<float>& post = t.layers[3].k;
  EXPECT_TRUE(std::equal(pre.begin(), pre.begin() + 128, post.begin()));
  EXPECT_FALSE(std::equal(pre.begin() + 128, pre.begin() + 256, post.begin() + 128));
}

// q = W_q hidden, before RoPE: hidden is the attention's own input.
TEST(Record, HiddenTimesTheQueryProjectionIsTheQuery) {
  RecordOptions o;
  o.pre_rope = o.hidden = true;
  const AttentionTrace t = record(probe(), prompt(3), o);
  for (std::size_t l = 0; l < 8; ++l) {
    for (std::size_t out = 0; out < 512; out += 37) {
      double sum = 0;
      for (std::size_t i = 0; i < 384; ++i) sum += double{probe().weights().layers[l].q[out * 384 + i]} * t.layers[l].hidden[2 * 384 + i];
      EXPECT_NEAR(t.layers[l].pre_q[2 * 512 + out], sum, 1e-4);
    }
  }
}

TEST(Record, LookaheadIsGreedyDecodingAndLeavesNoTrace) {
  const SafetensorsFile golden = golden_logits();
  const std::vector<std::int32_t> ids = golden.ints("0.ids");
  RecordOptions o;
  o.decode_tokens = 8;
  const AttentionTrace plain = record(probe(), ids, o);
  o.passes = {"lookahead"};
  const AttentionTrace t = record(probe(), ids, o);
  const ExtraPass& pass = t.passes.at("lookahead");
  std::vector<std::int32_t> expected = golden.ints("0.greedy");
  expected.resize(8);
  EXPECT_EQ(std::tuple(pass.ids, pass.chunks), std::tuple(expected, (std::vector<PassChunk>{{0, 8, 0, 307}})));
  EXPECT_TRUE(std::equal(pass.layers[5].q.begin(), pass.layers[5].q.end(), t.layers[5].q.begin() + 307 * 512));
  EXPECT_EQ(std::tuple(t.ids, t.layers[7].k), std::tuple(plain.ids, plain.layers[7].k));
}

// Each chunk is what the model computes for prompt, instruction and chunk as one sequence.
TEST(Record, ReconstructionRunsEachChunkBehindThePrompt) {
  const std::vector<std::int32_t> ids = prompt(60);
  RecordOptions o;
  o.passes = {"reconstruct"};
  o.repeat = {{1, 2, 3}, {4, 5}, {10}, 25, 8};
  const AttentionTrace t = record(probe(), ids, o);
  const ExtraPass& pass = t.passes.at("reconstruct");
  EXPECT_EQ(pass.chunks, (std::vector<PassChunk>{{0, 29, 0, 25}, {29, 65, 25, 50}, {65, 86, 50, 60}}));
  std::vector<std::int32_t> second{4, 5};
  second.insert(second.end(), ids.begin() + 17, ids.begin() + 25);
  second.push_back(10);
  second.insert(second.end(), ids.begin() + 25, ids.begin() + 50);
  EXPECT_EQ(std::vector<std::int32_t>(pass.ids.begin() + 29, pass.ids.begin() + 65), second);
  std::vector<std::int32_t> whole = ids;
  whole.insert(whole.end(), second.begin(), second.end());
  const AttentionTrace expected = record(probe(), whole, {});
  for (std::size_t l = 0; l < 8; ++l) {
    for (std::size_t i = 0; i < 36 * 512; ++i) ASSERT_NEAR(pass.layers[l].q[29 * 512 + i], expected.layers[l].q[60 * 512 + i], 1e-3);
    for (std::size_t i = 0; i < 36 * 128; ++i) ASSERT_NEAR(pass.layers[l].v[29 * 128 + i], expected.layers[l].v[60 * 128 + i], 1e-3);
  }
}

// The same pass, and gradients of each chunk by itself.
TEST(Record, ReconstructionWithABackwardPassHasTheNormsOfItsGradients) {
  const std::vector<std::int32_t> ids = prompt(60);
  RecordOptions o;
  o.passes = {"reconstruct", "reconstruct_gradient"};
  o.repeat = {{1, 2, 3}, {4, 5}, {10}, 25, 8, 25};
  const AttentionTrace t = record(probe(), ids, o);
  const ExtraPass &plain = t.passes.at("reconstruct"), &pass = t.passes.at("reconstruct_gradient");
  EXPECT_EQ(std::tuple(pass.chunks, pass.ids), std::tuple(plain.chunks, plain.ids));
  KvState kv(probe().config());
  forward(probe(), ids, kv);
  GradientTape tape(probe());
  forward(probe(), std::span(pass.ids).subspan(29, 36), kv, &tape);
  const std::vector<std::vector<float>> second = tape.norms(kv);
  for (std::size_t l = 0; l < 8; ++l) {
    EXPECT_EQ(pass.layers[l].q, plain.layers[l].q);
    EXPECT_TRUE(plain.layers[l].gradient.empty());
    ASSERT_EQ(pass.layers[l].gradient.size(), 86U);
    EXPECT_TRUE(std::equal(second[l].begin(), second[l].end(), pass.layers[l].gradient.begin() + 29)) << l;
  }
}

TEST(Record, AKnownContinuationEqualsDecodingIt) {
  RecordOptions greedy;
  greedy.decode_tokens = 6;
  const AttentionTrace decoded = record(probe(), prompt(50), greedy);
  RecordOptions known;
  known.continuation.assign(decoded.ids.begin() + 50, decoded.ids.begin() + 53);
  known.decode_tokens = 3;
  const AttentionTrace t = record(probe(), prompt(50), known);
  EXPECT_EQ(std::tuple(t.ids, t.prompt_tokens), std::tuple(decoded.ids, 50));
  for (std::size_t i = 0; i < t.layers[7].k.size(); ++i) ASSERT_NEAR(t.layers[7].k[i], decoded.layers[7].k[i], 1e-3);
}

TEST(Record, SameInputSameBytesAndBackFromTheFile) {
  const std::string first = testing::TempDir() + "kvlab_" + std::to_string(::getpid()) + "_record.safetensors", second = first + "2";
  const AttentionTrace t = record(probe(), prompt(60), everything());
  write_attention_trace(first, t, TraceFloat::kF32);
  write_attention_trace(second, record(probe(), prompt(60), everything()), TraceFloat::kF32);
  EXPECT_EQ(read_file(first), read_file(second));
  const AttentionTrace back = read_attention_trace(first);
  EXPECT_EQ(std::tuple(back.ids, back.chunk_ends), std::tuple(t.ids, t.chunk_ends));
  for (std::size_t l = 0; l < 8; ++l) {
    EXPECT_EQ(std::tuple(back.layers[l].q, back.layers[l].pre_k), std::tuple(t.layers[l].q, t.layers[l].pre_k));
    EXPECT_EQ(back.layers[l].w_o, t.layers[l].w_o);
    EXPECT_EQ(back.passes.at("reconstruct").layers[l].k, t.passes.at("reconstruct").layers[l].k);
    EXPECT_EQ(back.passes.at("reconstruct_gradient").layers[l].gradient, t.passes.at("reconstruct_gradient").layers[l].gradient);
  }
  EXPECT_EQ(back.passes.at("reconstruct").layers[7].hidden, t.passes.at("reconstruct").layers[7].hidden);
  EXPECT_EQ(back.passes.at("reconstruct").layers[7].hidden.size(), t.passes.at("reconstruct").ids.size() * 384);
  EXPECT_EQ(back.passes.at("reconstruct").chunks, t.passes.at("reconstruct").chunks);
  std::filesystem::remove(first);
  std::filesystem::remove(second);
}

TEST(Record, Errors) {
  EXPECT_EQ(error({}, {}), "the prompt has no tokens");
  EXPECT_EQ(error({256, 300}, {}), "token 1 has id 300, outside [0, 264) of model 'probe'");
  RecordOptions o;
  o.decode_tokens = 97;
  EXPECT_EQ(error(std::vector<std::int32_t>(4000, 65), o),
            "a prompt of 4000 tokens and 97 decoded tokens do not fit into the context of 4096 of model 'probe'");
  o.decode_tokens = 0;
  o.passes = {"lookahed"};
  EXPECT_EQ(error({256}, o), "unknown pass 'lookahed'; did you mean 'lookahead'?");
  o.passes = {"lookahead", "lookahead"};
  EXPECT_EQ(error({256}, o), "pass 'lookahead' is named twice");
}

}  // namespace
}  // namespace kvlab
