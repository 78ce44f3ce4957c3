// Images in prompts: encoded in the step of the prompt, or on encode replicas before it.
#include <numeric>

#include "base/config/spec_file.h"
#include "sim/cost/vision_encoder.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

constexpr std::int32_t kTokens = 50;  // of an image
constexpr std::int64_t kImageUs = 1000;

StepCost encode(std::int64_t images) {
  StepCost cost;
  cost.add(CostPart::kLinear, Footing::kRoofline, to_ps(Span(images * kImageUs * 1000)));
  return cost;
}

// One pass over n images takes 1 ms, and 1 ms more for each.
EncodeWork pass(std::int64_t images) { return {to_ps(Span((images + 1) * kImageUs * 1000)), {}, images, images}; }

// A prompt of `text` tokens and its images; `facts` outlives it.
TraceRequest with_images(double at_ms, std::int32_t text, RequestFacts& facts, std::int32_t images, std::int32_t output = 3) {
  facts.images = images;
  TraceRequest request = request_at(at_ms, text + images * kTokens, output);
  request.facts = &facts;
  return request;
}

// Blocks of 16 tokens; steps of LinearCost take 5 us and 20 ns per token.
SimSetup one_pool(const std::string& scheduler = "{async_scheduling: false, budget_tokens: 1024}") {
  SimSetup setup = basic_setup("vllm_v1", scheduler);
  setup.images.tokens_each = kTokens;
  setup.encode = encode;
  setup.timeline_interval = Span{0};
  return setup;
}

// Encode replicas before a prefill and a decode replica. Links take 1 ms per call, and 1 us per kB.
SimSetup three_stages(std::uint32_t encoders, std::int32_t batch, const std::string& dispatcher = "epd", const std::string& keys = "{}") {
  SimSetup setup = one_pool();
  setup.encode = nullptr;
  setup.link = {1e9, Span(1'000'000)};
  setup.make_dispatcher = policy<DispatcherRegistry>("dispatcher", dispatcher, keys);
  setup.images.bytes_each = 1'000'000;
  setup.images.pools = {{"encode", encoders, batch, setup.link, pass}};
  setup.pools = {pool_of(setup, "prefill", {true, false}, 1), pool_of(setup, "decode", {false, true}, 1)};
  setup.pool_costs.assign(2, setup);
  return setup;
}

// Images of each step.
struct Steps final : RunSink {
  std::vector<std::int32_t> images;
  [[nodiscard]] bool wants_steps() const override { return true; }
  void step(const InFlightStep& step, const ReplicaState&) override { images.push_back(step.images); }
};

std::int64_t us(Time at) { return ns(at) / 1000; }

TEST(Images, AreEncodedInTheStepOfThePrompt) {
  RequestFacts facts;
  const auto [records, summary] = serve(one_pool(), {with_images(0, 20, facts, 2)});
  const RequestRecord& with = records.requests[0];
  const RequestRecord plain = records_of(one_pool(), {request_at(0, 20 + 2 * kTokens, 3)}).requests[0];
  EXPECT_EQ(ns(with.first_token) - ns(plain.first_token), 2 * kImageUs * 1000);
  EXPECT_EQ(with.last_token - with.first_token, plain.last_token - plain.first_token);
  EXPECT_GT(summary.part_frac[0], 0.9);
}

// Chunks of 64 tokens over 40 of text and two images: the first is begun by chunk 0, the second at token 90 by chunk 1.
TEST(Images, AreEncodedByTheChunkThatComputesTheirFirstToken) {
  RequestFacts facts;
  Steps steps;
  run_into(steps, one_pool("{async_scheduling: false, budget_tokens: 64}"), {with_images(0, 40, facts, 2, 1)});
  EXPECT_EQ(steps.images, (std::vector<std::int32_t>{1, 1, 0}));
}

// Memory for one of two requests: the other is preempted, and computed with its images again.
TEST(Images, AreEncodedAgainWhenAPromptIs) {
  RequestFacts a, b;
  Steps steps;
  SimSetup setup = one_pool();
  setup.memory.num_blocks = 18;
  const RunSummary summary = run_into(steps, setup, {with_images(0, 30, a, 2, 100), with_images(0, 30, b, 2, 100)});
  ASSERT_EQ(summary.preemptions, 1U);
  EXPECT_EQ(std::accumulate(steps.images.begin(), steps.images.end(), 0), 6);
}

// 3 images on 2 replicas, one at a time: 2 x 2 ms on the first. Its two images take 1 + 2 ms to the prefill replica, after them the third
// 1 + 1 ms over the same link in. The prompt of 170 tokens, padded to 176, takes 5 us + 176 x 20 ns.
TEST(Images, PassThreeStages) {
  RequestFacts facts;
  const auto [records, summary] = serve(three_stages(2, 1), {with_images(0, 20, facts, 3)});
  ASSERT_EQ(records.requests.size(), 1U);
  EXPECT_EQ(std::tuple(records.requests[0].outcome, us(records.requests[0].queued), ns(records.requests[0].first_token)),
            std::tuple(Outcome::kCompleted, 4000 + 3000 + 2000, 9'000'000 + 5'000 + 176 * 20));
  ASSERT_EQ(records.transfers.size(), 3U);
  const TransferRecord &first = records.transfers[0], &second = records.transfers[1];
  EXPECT_EQ(first.from, 2U);  // encode replicas are counted after the ranks
  EXPECT_EQ(second.from, 3U);
  EXPECT_EQ(std::tuple(first.to, first.tokens, first.bytes), std::tuple(0U, 2 * kTokens, 2'000'000));
  EXPECT_EQ(std::tuple(us(first.ready), us(first.end), us(second.end)), std::tuple(4000, 7000, 9000));
  ASSERT_EQ(summary.encode_pools.size(), 1U);
  const EncodeTotals& encoded = summary.encode_pools[0];
  EXPECT_EQ(std::tuple(encoded.images, encoded.passes, static_cast<std::int64_t>(encoded.busy), encoded.peak_held_bytes),
            std::tuple(3, 3, 6'000'000'000, 2'000'000));
  EXPECT_EQ(summary.pools[0].images, 0) << "the prefill replica has no encoder";
}

TEST(Images, OneEncoderTakesLongerThanTwo) {
  RequestFacts facts;
  const auto queued = [&](const std::string& keys) {
    const Recorder records = records_of(three_stages(2, 1, "epd", keys), {with_images(0, 20, facts, 4)});
    return us(records.requests[0].queued);
  };
  EXPECT_EQ(queued("{parallel_encode: true}"), 4000 + 3000 + 3000);
  EXPECT_EQ(queued("{parallel_encode: false}"), 8000 + 5000);
}

// Passes of up to 3 images, over requests: 2 and 1 of the second, then its other 2.
TEST(Images, APassTakesImagesOfSeveralRequests) {
  RequestFacts a, b, c;
  const auto [records, summary] =
      serve(three_stages(1, 3), {with_images(0, 20, a, 1), with_images(0.5, 20, b, 2), with_images(0.6, 20, c, 3)});
  EXPECT_EQ(summary.encode_pools[0].passes, 3U);  // 1, then 2 + 1, then 2
  std::vector<std::int64_t> ready;
  for (const TransferRecord& t : records.transfers)
    if (t.from == 2) ready.push_back(us(t.ready));
  EXPECT_EQ(ready, (std::vector<std::int64_t>{2000, 6000, 9000}));
}

TEST(Images, TextPassesTheEncodersBy) {
  RequestFacts facts;
  const Recorder records = records_of(three_stages(1, 1), {with_images(0, 20, facts, 1), request_at(0.1, 100, 3)});
  EXPECT_EQ(std::tuple(records.requests[0].number, us(records.requests[0].queued)), std::tuple(1U, 100));
}

// A run that stops lists every request that was on its way: one is encoded, one waits, one's embeddings are sent.
TEST(Images, ARunThatStopsLosesNoRequest) {
  RequestFacts a, b, c;
  for (const std::int64_t stop_us : {1000, 2500, 3500, 4500}) {
    SimSetup setup = three_stages(1, 1);
    setup.stop.after_time = Span(stop_us * 1000);
    const auto [records, summary] = serve(setup, {with_images(0, 20, a, 1), with_images(0.1, 20, b, 1), with_images(0.2, 20, c, 1)});
    EXPECT_EQ(records.requests.size(), 3U) << stop_us;
    EXPECT_EQ(summary.latencies.unfinished, 3U) << stop_us;
  }
}

VisionEncoder shipped(const std::string& name) {
  Params p = Params::from_text("{encoder: " + name + "}");
  return read_vision_encoder(p, "encoder");
}

HardwareSpec card(const std::string& name) { return load_hardware_spec(name, profiles_folder() + "/hardware"); }

// PyTorch Image Models lists 304.5 M parameters and 191.1 G multiply-adds for ViT-L/14 of CLIP at 336 pixels
// (vit_large_patch14_clip_336). Ours leaves out norms and biases, and has LLaVA's projector of 21.0 M parameters over 576 tokens.
TEST(VisionEncoder, ClipHasThePublishedSizeAndWork) {
  const VisionEncoder clip = shipped("clip-vit-l-14-336");
  const double params = static_cast<double>(clip.weight_bytes()) / 2 - static_cast<double>(clip.projector_params);
  EXPECT_NEAR(params, 304.5e6, 0.01 * 304.5e6);
  const double flops = static_cast<double>(encode_cost(clip, card("a100-80gb"), 1).flops);
  EXPECT_NEAR(flops / 2 - 576.0 * 20971520, 191.1e9, 0.01 * 191.1e9);
}

// A card without floors whose kernels reach 100 TFLOP/s, with enough bandwidth that FLOPs decide: 2 layers of 8 wide over 4 patches.
TEST(VisionEncoder, TimeIsThatOfItsOperations) {
  HardwareSpec h;
  h.fp16_flops = 1e6;
  h.flops_frac = h.bandwidth_frac = 1;
  h.memory_bytes_per_s = 1e15;
  VisionEncoder e;
  e.layers = 2;
  e.hidden = 8;
  e.intermediate = 16;
  e.patches = 4;
  e.patch_pixels = 2;
  e.tiles = 3;
  // A tile: 2 x 4 x 12 x 8 of the patches, and in each layer 2 x 4 x (4 x 64 + 2 x 128) and 4 x 16 x 8 of attention.
  const std::int64_t tile = 768 + 2 * (4096 + 512);
  const StepCost one = encode_cost(e, h, 1);
  EXPECT_EQ(one.flops, 3 * tile);
  EXPECT_NEAR(to_s(one.total), static_cast<double>(3 * tile) / 1e6, 1e-6);
  EXPECT_EQ(one.of(CostPart::kLinear), one.total);
  EXPECT_EQ(encode_cost(e, h, 5, 2).total, encode_cost(e, h, 3).total) << "two GPUs share five images";
  EXPECT_EQ(encode_cost(e, h, 5, 2).flops, 5 * 3 * tile);
  h.linear_floor_ns = 1000;
  EXPECT_NEAR(to_s(encode_cost(e, h, 1).total - one.total), (1 + 2 * 4) * 1e-6, 1e-9);
}

TEST(VisionEncoder, MissingAndNegativeKeysAreRefused) {
  const auto error = [](const std::string& keys) { return error_of([&] { shipped(keys); }); };
  EXPECT_THAT(error("{hidden: 8}"), HasSubstr("layers"));
  EXPECT_THAT(error("{layers: -1, hidden: 8, intermediate: 8, patches: 4}"), HasSubstr("'layers' = -1 is outside [1, 1000]"));
  EXPECT_THAT(error("clip-vit-l"), HasSubstr("clip-vit-l-14-336"));
}

}  // namespace
}  // namespace kvlab::testing
