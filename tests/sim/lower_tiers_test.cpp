// Transfers from lower tiers: places, and the computation beside which they run.
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

// The tiny model of two layers, on a card whose link moves a byte in 100 ps and whose disk reads one in 1 ns.
struct TiersCard {
  std::unique_ptr<CostModel> cost = make_cost_model(
      roofline_setup("", kTinyModel, std::string(kTinyCard) + "disk_read_bytes_per_s: 1e9\ncpu_call_ns: 100\ndisk_call_ns: 300\n"));

  // Picoseconds of the policy in a step of one row of `kv` tokens.
  std::int64_t policy(std::vector<PolicyOp> ops, std::int32_t kv = 100) const {
    StepShape shape = equal_decode_rows(1, kv, {});
    shape.ops = ops;
    return cost->step(shape).of(CostPart::kPolicy).count();
  }
  // Time that transfers may overlap: the layers, without embedding, head and the like.
  std::int64_t layers(std::int32_t kv = 100) const {
    StepShape shape = equal_decode_rows(1, kv, {});
    shape.layers = 2;
    return cost->step(shape).total.count();
  }
};

PolicyOp fetch_op(std::int64_t bytes, FetchBeside beside, std::int64_t launches = 2) {
  return {"fetch", launches, bytes, 0, true, false, beside};
}

TEST(LowerTiers, PlacesHaveTheirOwnRates) {
  const TiersCard card;
  const PolicyOp fetch = fetch_op(25'000, FetchBeside::kNothing), disk{"read_disk", 2, 25'000, 0, false, true};
  EXPECT_EQ(std::tuple(card.policy({fetch}), card.policy({disk})), std::tuple(25'000 * 100 + 2 * 100'000, 25'000 * 1000 + 2 * 300'000));
  EXPECT_EQ(card.policy({fetch, disk}), card.policy({disk})) << "both places send at the same time";
  StepShape shape = equal_decode_rows(1, 100, {});
  const std::int64_t bytes = card.cost->step(shape).bytes;
  shape.ops = {&disk, 1};
  EXPECT_EQ(card.cost->step(shape).bytes, bytes) << "not from the GPU's memory";
}

TEST(LowerTiers, ATransferHidesBesideTheLayerBefore) {
  const TiersCard card;
  const std::int64_t layers = card.layers();
  ASSERT_GT(layers, 1000);
  for (const std::int64_t extra : {-1000, 0, 1, 50'000}) {
    // Bytes that take as long as the layers and `extra` ns * 10 more.
    const std::int64_t bytes = (layers - 2 * 100'000) / 100 + extra;
    const std::int64_t exposed = std::max<std::int64_t>(0, bytes * 100 + 2 * 100'000 - layers);
    EXPECT_NEAR(static_cast<double>(card.policy({fetch_op(bytes, FetchBeside::kLayerBefore)})), static_cast<double>(exposed), 1) << extra;
  }
  // One of two layers fetches: it has one layer to hide beside, which a policy's own operations make longer.
  const std::int64_t one = card.policy({fetch_op(1'000'000, FetchBeside::kLayerBefore, 1)});
  EXPECT_NEAR(static_cast<double>(one), 1e8 + 1e5 - static_cast<double>(layers) / 2, 1);
  const PolicyOp other{"top_k", 2, 40'000, 0};
  const std::int64_t own = card.policy({other});
  EXPECT_NEAR(static_cast<double>(card.policy({other, fetch_op(1'000'000, FetchBeside::kLayerBefore, 1)})),
              static_cast<double>(one + own) - static_cast<double>(own) / 2, 1);
}

TEST(LowerTiers, OrBesideTheKeysThatAreRebuilt) {
  const TiersCard card;
  const PolicyOp rebuild{"low_rank_rebuild", 2, 2'000'000, 0}, fetch = fetch_op(100'000, FetchBeside::kKeyRebuild);
  const std::int64_t alone = card.policy({fetch}), work = card.policy({rebuild});
  EXPECT_EQ(alone, card.policy({fetch_op(100'000, FetchBeside::kNothing)}));
  EXPECT_EQ(card.policy({rebuild, fetch}), std::max(alone, work));
}

// Attention grows and hides more of a transfer: steps are not on one line.
TEST(LowerTiers, StepsThatHideTransfersAreNotExtrapolated) {
  const TiersCard card;
  StepShape shape = equal_decode_rows(1, 100, {});
  const PolicyOp ops[] = {fetch_op(1'000'000, FetchBeside::kLayerBefore), fetch_op(1'000'000, FetchBeside::kNothing)};
  shape.ops = {&ops[0], 1};
  EXPECT_EQ(card.cost->decode_span(shape).valid_steps, 1);
  shape.ops = {&ops[1], 1};
  EXPECT_GT(card.cost->decode_span(shape).valid_steps, 1);
}

// The time of a decode step of Llama-3.1-8B on an A100 with PCIe 4.
struct OffloadedDecode : ::testing::Test {
  double ms(const std::string& recipe, std::int32_t rows, std::int32_t tokens = 32'768) const {
    const ModelShape shape{32, 32, 8, 128, 4096, 2};
    RecipeFootprint footprint(load_recipe(recipe), shape, 16);
    std::vector<SeqState> batch(static_cast<std::size_t>(rows), SeqState{tokens, tokens - 100, tokens, 0, false, false, false, 1});
    PolicyWork work;
    footprint.charge(batch, work);
    StepShape step;
    for (const SeqState& s : batch) add_decode_row(step, s.attended_tokens, {});
    step.head_rows = step.decodes;
    step.ops = work.ops;
    const double time = to_s(cost_->step(step).total) * 1e3;
    RecordProperty(recipe + " of " + std::to_string(rows) + ", us", static_cast<int>(1e3 * time));
    return time;
  }
  std::unique_ptr<CostModel> cost_ = make_cost_model(setup_of("model: llama-3.1-8b\nhardware: a100-80gb\n"));
};

// PublishedModel: InfiniGen 3 x, ShadowKV 3 x, SpeCache 4.6 x, LeoAM 3.5 x, each in another setting and over another baseline.
TEST_F(OffloadedDecode, ChosenTokensAreFasterThanAll) {
  for (const std::int32_t rows : {1, 8}) {
    const double all = ms("full_offload", rows), resident = ms("full", rows);
    // 128 KiB of a token over 31.5 GB/s, less a layer's time for each of the layers.
    EXPECT_NEAR(all, rows * 32'768 * 131'072.0 / 31.5e6, 0.06 * all);
    EXPECT_GT(all, 2 * resident);
    for (const char* recipe : {"infinigen", "shadowkv", "spe_cache"}) EXPECT_GT(all, 2 * ms(recipe, rows)) << recipe << " " << rows;
    for (const char* recipe : {"alisa", "leoam"}) EXPECT_GT(all, ms(recipe, rows)) << recipe << " " << rows;
    EXPECT_LT(ms("spe_cache", rows), 1.2 * resident) << "64 tokens of each head come while the layer before computes";
  }
}

}  // namespace
}  // namespace kvlab
