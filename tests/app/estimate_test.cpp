#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

const std::vector<std::string> kLlama = {"--model", "llama-3.1-8b", "--hardware", "h100"};

struct EstimateTest : AppTest {
  static nlohmann::json figures(const std::string& command, std::vector<std::string> more) {
    more.insert(more.end(), kLlama.begin(), kLlama.end());
    return nlohmann::json::parse(call_ok({command, "--json"}, more).out);
  }
};

// Llama 3.1 8B: 32 layers of 218.1 M weights in products, a head of 525.3 M, 2 x 32 x 8 x 128 values of K and V in bf16. H100: 989.4
// TFLOP/s, 3.35 TB/s, 84,983,939,072 bytes.
TEST_F(EstimateTest, MemoryAndPeakTimesByHand) {
  const nlohmann::json e = figures("estimate", {"--prompt-tokens", "1024", "--output-tokens", "128"});
  EXPECT_EQ(std::tuple(e["kv_bytes_per_token"], e["sequence_kv_bytes"], e["weights_bytes"]),
            std::tuple(131'072, 1152 * 131'072, 16'060'522'496));
  EXPECT_EQ(e["max_batch"], 400) << "(0.9 x 84,983,939,072 - 16,060,522,496) / 150,994,944 = 400.2";
  EXPECT_EQ(e["batch"], 400);
  const double layer_weights = 32 * 218.1e6, head_weights = 525.3e6;
  const double prompt_flops = 2 * layer_weights * 1024 + 2.0 * 1024 * 1024 * 4096 * 32 + 2 * head_weights;
  EXPECT_NEAR(e["ttft_at_peak_ms"].get<double>(), 1e3 * prompt_flops / 989.4e12, 0.01 * 14.7);
  const nlohmann::json one = figures("estimate", {"--batch", "1"});
  const double step_bytes = 2 * (layer_weights + head_weights) + 1087.0 * 131'072;
  EXPECT_NEAR(one["tpot_at_peak_ms"].get<double>(), 1e3 * step_bytes / 3.35e12, 0.01 * 4.52);
  EXPECT_GT(one["tpot_ms"].get<double>(), one["tpot_at_peak_ms"].get<double>());
}

TEST_F(EstimateTest, RatesEnergyAndPriceByHand) {
  const nlohmann::json e =
      figures("estimate", {"--batch", "50", "--output-tokens", "101", "--watts", "1000", "--pue", "1.25", "--tp", "2"});
  const double ttft = e["ttft_ms"], tpot = e["tpot_ms"], ttft_peak = e["ttft_at_peak_ms"], tpot_peak = e["tpot_at_peak_ms"];
  const double seconds = 1e-3 * (50 * ttft + 100 * tpot), at_peak = 1e-3 * (50 * ttft_peak + 100 * tpot_peak), tokens = 50 * 101;
  const auto expect = [&](const char* key, double value) { EXPECT_NEAR(e[key].get<double>(), value, 1e-9 * value) << key; };
  expect("output_tokens_per_s", tokens / seconds);
  expect("dollars_per_million_tokens", 2 * 3.99 / 3600 * seconds / tokens * 1e6);
  const double joules = 2 * (140 * seconds + 560 * at_peak) / tokens;
  expect("energy_j_per_token", joules);
  expect("power_bound_tokens_per_s", 1000 / (1.25 * joules));
  expect("bound_tokens_per_s", std::min(1000 / (1.25 * joules), tokens / seconds));
  const nlohmann::json alone = figures("estimate", {"--batch", "1", "--output-tokens", "101", "--tp", "2"});
  expect("alone_ms", alone["ttft_ms"].get<double>() + 100 * alone["tpot_ms"].get<double>());
  expect("alone_dollars", 2 * 3.99 / 3600 * 1e-3 * e["alone_ms"].get<double>());
  expect("alone_energy_j", 2 * 700 * 1e-3 * e["alone_ms"].get<double>());
  expect("context_switch_ms", 1e3 * e["sequence_kv_bytes"].get<double>() / 63e9);
}

TEST_F(EstimateTest, TableAndErrors) {
  EXPECT_THAT(call({"estimate", "--output-tokens", "1"}, {"--model", "llama-3.1-8b", "--hardware", "h20"}).out,
              has_all({"llama-3.1-8b on 1 x H20 96GB, 1024 + 1 tokens; step times: roofline\n",
                       "\ntpot_ms                                  -   ", "no price: add 'price_per_hour: USD' to "}));
  EXPECT_THAT(error_of_call({"estimate", "--model", "llama-3.1-70b", "--hardware", "h100"}),
              HasSubstr("0 sequences of 1024 + 128 tokens of llama-3.1-70b fit on 1 x H100 SXM 80GB"));
  EXPECT_THAT(error_of_call({"estimate", "--batch", "401"}, kLlama), HasSubstr("400 sequences of"));
  EXPECT_EQ(call({"estimate", "--hardware", "h100"}).status, 2);
  EXPECT_THAT(call({"estimate", "--model", "llama-3.1-8b", "--hardware", "h10O"}).err, HasSubstr("did you mean 'h100'"));
}

// A layer of Llama: two norms, QKV, rotary, append, attention, output, gate and up, activation, down. A step: embedding, norm, head,
// sampler.
TEST_F(EstimateTest, LaunchesOfAStep) {
  const nlohmann::json c = figures("characterize", {"--batch", "48", "--dispatch-us", "25"});
  std::vector<int> batches;
  for (const auto& point : c["points"]) {
    batches.push_back(point["batch"]);
    EXPECT_EQ(point["kernels"], 32 * 10 + 4);
    EXPECT_NEAR(point["host_us"].get<double>(), (32 * 10 + 4) * 25.0, 1e-6);
  }
  EXPECT_EQ(batches, (std::vector<int>{1, 2, 4, 8, 16, 32, 48}));
  // Launches take 8.1 ms. Weights of 15 GB at 0.8 x 3.35 TB/s take 5.6 ms, to which 128 products and 32 attentions add floors of 4 and 10
  // us, and each row 67 MB of KV: 25 us. 512 prompt tokens at 0.8 x 989 TFLOP/s take 9 ms.
  EXPECT_EQ(c["transition_batch"], 48);
  EXPECT_TRUE(figures("characterize", {"--batch", "32", "--dispatch-us", "25"})["transition_batch"].is_null());
  EXPECT_EQ(figures("characterize", {"--prefill", "--dispatch-us", "25"})["transition_batch"], 1);
  EXPECT_EQ(figures("characterize", {"--prefill", "--tokens", "128", "--dispatch-us", "25"})["transition_batch"], 4);
  EXPECT_THAT(call({"characterize"}, kLlama).out, HasSubstr("the GPU is the bound at every batch of the sweep"));
}

}  // namespace
}  // namespace kvlab
