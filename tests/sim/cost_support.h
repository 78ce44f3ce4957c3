#pragma once

#include <filesystem>
#include <string>

#include "sim/cost/make_cost_model.h"
#include "sim/cost/step_prices.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/test_files.h"

namespace kvlab {

inline CostSetup setup_of(const std::string& yaml) {
  Params p = Params::from_text(yaml);
  return read_cost_setup(p);
}

// A model small enough to compute by hand: 2 layers, 4 heads of 4 channels, 2 KV heads.
inline const char* const kTinyModel =
    "hidden_size: 16\nnum_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 2\nintermediate_size: 32\nvocab_size: "
    "64\ntorch_dtype: float16\n";

// Slow enough that no table below breaks its datasheet.
inline const char* const kTinyCard =
    "source: made up for tests\nmemory_bytes: 16777216\nmemory_bandwidth_bytes_per_s: 1e12\nfp16_flops: 1e14\npcie_bytes_per_s: 1e10\n"
    "flops_frac: 1\nbandwidth_frac: 1\nlaunch_ns: 0\nlink_latency_ns: 1000\n";

// With 4 experts of 32 channels, 2 of them per token.
inline const std::string kTinyMoe = std::string(kTinyModel) +
                                    "model_type: mixtral\nmax_position_embeddings: 1024\ntie_word_embeddings: false\nnum_local_experts: 4\n"
                                    "num_experts_per_tok: 2\n";

// Writes a bundle whose tables are exact lines, so that expected times can be computed by hand (microseconds):
//   every dense layer 1 + tokens / 10; lm_head 5 + sequences; sampler 2
//   attention: decode 10 + n * kv / 100; prompts pc + (kv_prefill + n * kv) / 100
inline void write_tiny_bundle(const TempFolder& folder, const std::string& skew_fit = "skew_fit:\n  enabled: false\n") {
  folder.write(
      "meta.yaml",
      "profiler_version: 1.0.0\nvllm_version: 0.19.0\nprofiled_at: '2026-01-02'\ngpu: Test\nengine_effective:\n  block_size: 16\n" +
          skew_fit);
  std::string dense = "layer,tokens,time_us\n";
  for (const char* layer :
       {"act_fn", "down_proj", "embedding", "final_layernorm", "gate_up_proj", "layernorm", "o_proj", "qkv_proj", "rotary_emb"}) {
    for (const int tokens : {1, 2, 4, 8, 64, 128})
      dense += std::string(layer) + "," + std::to_string(tokens) + "," + std::to_string(1 + tokens / 10.0) + "\n";
  }
  folder.write("tp1/dense.csv", dense);
  folder.write("tp1/per_sequence.csv", "layer,sequences,time_us\nlm_head,1,6\nlm_head,8,13\nsampler,1,2\nsampler,8,2\n");
  std::string attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n";
  const auto row = [&](int pc, int kp, int n, int kv) {
    const double us = (pc == 0 ? 10 : pc) + (kp + n * kv) / 100.0;
    attention += std::to_string(pc) + "," + std::to_string(kp) + "," + std::to_string(n) + "," + std::to_string(kv) + "," +
                 std::to_string(us) + "\n";
  };
  for (const int n : {1, 4, 16}) {
    for (const int kv : {16, 64, 256, 1024}) row(0, 0, n, kv);
  }
  for (const int pc : {16, 64}) {
    for (const int kp : {0, 64}) {
      row(pc, kp, 0, 0);
      for (const int n : {1, 4, 16}) {
        for (const int kv : {16, 64, 256, 1024}) row(pc, kp, n, kv);
      }
    }
  }
  folder.write("tp1/attention.csv", attention);
}

struct TinyBundle : TempFolder {
  TinyBundle() { write_tiny_bundle(*this); }
};

// YAML of an experiment without a profile.
inline std::string roofline_experiment(const TempFolder& folder, const std::string& more = "", const std::string& model = kTinyModel,
                                       const std::string& card = kTinyCard) {
  return "model: " + folder.write("model.yaml", model) + "\nhardware: " + folder.write("card.yaml", card) + "\n" + more;
}

inline CostSetup roofline_setup(const std::string& more = "", const std::string& model = kTinyModel, const std::string& card = kTinyCard) {
  const TempFolder folder;
  return setup_of(roofline_experiment(folder, more, model, card));
}

// YAML of an experiment on the tiny model, card and bundle of `folder`.
inline std::string tiny_experiment(const TempFolder& folder, const std::string& profile = "bundle", const std::string& more = "") {
  return roofline_experiment(folder, "profile: {" + profile + ": {path: " + folder.path() + more + "}}\n");
}

inline StepShape decode_shape(std::int32_t rows, std::int64_t kv_tokens, std::int32_t kv_max = 0, std::int32_t kv_min = 0) {
  StepShape shape;
  shape.decodes = shape.head_rows = rows;
  shape.decode_kv_tokens = kv_tokens;
  shape.decode_kv_max = kv_max;
  shape.decode_kv_min = kv_min;
  return shape;
}

// Decode rows over these numbers of cached tokens.
inline StepShape rows_shape(const std::vector<std::int32_t>& kv, const AttentionWindows& windows = {}) {
  StepShape shape;
  for (const std::int32_t tokens : kv) add_decode_row(shape, tokens, windows);
  shape.head_rows = shape.decodes;
  return shape;
}

// The price of a step with one piece of a prompt.
inline StepCost prompt_cost(CostModel& cost, const PrefillPiece& piece, std::int32_t head_rows = 0, std::int32_t layers = 0) {
  StepShape shape;
  shape.prefills = {&piece, 1};
  shape.head_rows = head_rows;
  shape.layers = layers;
  return cost.step(shape);
}

// A recorded profile, by card; skipped where it is absent.
struct RealBundleTest : ::testing::TestWithParam<const char*> {
  void SetUp() override {
    const std::string path = data_file(std::string("vllm-reference/") + GetParam() + "-llama-3.1-8b/profile");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << "; set KVLAB_DATA";
    setup_ = setup_of("profile: {bundle: {path: " + path + "}}\n");
  }
  CostSetup setup_;
};

}  // namespace kvlab
