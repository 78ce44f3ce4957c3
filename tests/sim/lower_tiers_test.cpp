// Prices of a policy's operations: from the profile where it has them, else from the roofline.
#include "sim/cost/profile.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

constexpr Picoseconds kMicrosecond{1'000'000};

// The tiny bundle as a profile of ours with times of three operations: compact 1000 bytes 2 us, 3000 bytes 4 us; top_k by logarithms,
// 100 bytes 1 us, 10,000 bytes 100 us; copies from the host 1 MiB 110 us, 2 MiB 220 us.
struct PolicyPrices : ::testing::Test {
  PolicyPrices() {
    write_tiny_bundle(bundle);
    Profile p = read_bundle(bundle.path(), 1);
    p.policy = PolicyTimes({{"compact", 2, 10, 10, 1000, 0, 2 * kMicrosecond, 0.01},
                            {"compact", 2, 30, 30, 3000, 0, 4 * kMicrosecond, 0},
                            {"top_k", 2, 10, 5, 100, 50, 1 * kMicrosecond, 0},
                            {"top_k", 2, 1000, 5, 10'000, 50, 100 * kMicrosecond, 0},
                            {"host_to_device", 1, 0, 0, 1 << 20, 0, 110 * kMicrosecond, 0},
                            {"host_to_device", 1, 0, 0, 2 << 20, 0, 220 * kMicrosecond, 0}},
                           {{"top_k", PolicyTimes::Scale::kLog}});
    p.tile_rows = 1;
    write_kvlab_profile(p, folder.path());
    written = profile_hash(p);
  }
  [[nodiscard]] CostSetup load() const { return load_from(folder.path()); }
  // The profile of a folder and its options.
  [[nodiscard]] CostSetup load_from(const std::string& profile) const {
    return setup_of(roofline_experiment(bundle, "profile: {kvlab: {path: " + profile + "}}\n"));
  }
  TempFolder bundle, folder;
  std::string written;
};

PolicySample in_step(const std::string& op, std::int64_t bytes, std::int64_t flops, double ps) {
  PolicySample s{op};
  s.rows = 1, s.bytes = bytes, s.flops = flops, s.time = round_ps(ps);
  return s;
}

// A prompt's calls do more with a byte than a decode step's: both are priced right, at all sizes.
TEST(PolicyTimes, StepsOfRecipesArePricedByBytesAndFlops) {
  const auto truth = [](double bytes, double flops) { return 3e6 + 40 * bytes + 2 * flops; };
  std::vector<PolicySample> samples;
  for (const std::int64_t bytes : {10'000, 100'000, 1'000'000})
    for (const std::int64_t flops_per_byte : {1, 50, 700})
      samples.push_back(
          in_step("sums", bytes, bytes * flops_per_byte, truth(static_cast<double>(bytes), static_cast<double>(bytes * flops_per_byte))));
  const PolicyTimes times(samples, {{"sums", PolicyTimes::Scale::kInSteps}});
  for (const double bytes : {10'000.0, 33'000.0, 1e6, 5e6})
    for (const double flops : {0.0, 1e5, 3e8, 1e10}) {
      const auto value = times.at("sums", bytes, flops);
      EXPECT_NEAR(value->ps / truth(bytes, flops), 1, 1e-6) << bytes << " " << flops;
      EXPECT_EQ(value->footing, bytes <= 1e6 && flops <= 7e8 ? Footing::kInterpolated : Footing::kExtrapolated);
    }
}

// If noise makes more bytes seem to take less time, they take none.
TEST(PolicyTimes, NoPartOfAPriceIsBelowZero) {
  const PolicyTimes times(
      {in_step("sums", 1000, 10'000, 2e6), in_step("sums", 100'000, 11'000, 1.9e6), in_step("sums", 1000, 900'000, 9e7)},
      {{"sums", PolicyTimes::Scale::kInSteps}});
  const double less = times.at("sums", 1000, 10'000)->ps, more = times.at("sums", 1e9, 10'000)->ps;
  EXPECT_EQ(less, more);
  EXPECT_NEAR(less, 1.95e6, 1e5);
  EXPECT_NEAR(times.at("sums", 1000, 900'000)->ps, 9e7, 5e5);
}

TEST(PolicyTimes, ASingleStepOfARecipeGrowsWithItsBytes) {
  const PolicyTimes times({in_step("sums", 1000, 10'000, 2e6)}, {{"sums", PolicyTimes::Scale::kInSteps}});
  EXPECT_NEAR(times.at("sums", 1000, 10'000)->ps, 2e6, 1);
  EXPECT_NEAR(times.at("sums", 5000, 50'000)->ps, 1e7, 1);
  EXPECT_EQ(times.at("sums", 5000, 50'000)->footing, Footing::kExtrapolated);
}

TEST(PolicyTimes, WithoutFlopsStepsOfRecipesAreStraightLines) {
  const PolicyTimes times({in_step("at_rest/kivi2", 1000, 0, 1e6), in_step("at_rest/kivi2", 3000, 0, 9e6)},
                          {{"at_rest/kivi2", PolicyTimes::Scale::kInSteps}});
  EXPECT_NEAR(times.at("at_rest/kivi2", 2000, 0)->ps, 5e6, 1);
}

TEST_F(PolicyPrices, InterpolateOverTheBytesOfOneCall) {
  const CostSetup setup = load();
  EXPECT_EQ(setup.profile_hash, written) << "read back as written";
  EXPECT_EQ(setup.profile->tile_rows, 1);
  const auto price = [&](const PolicyOp& op) { return setup.prices->policy(op).ps; };
  const auto us = [](double x) { return ::testing::DoubleNear(x * kMicrosecond.real(), 1e-3); };
  const auto in_table = [&](double inside, double between, double beyond) {
    return ::testing::ElementsAre(us(inside), us(between), us(beyond), us(0), us(0));
  };
  EXPECT_THAT(price({"compact", 1, 1000, 0}), in_table(2, 0, 0));
  EXPECT_THAT(price({"compact", 1, 2000, 0}), in_table(0, 3, 0));
  EXPECT_THAT(price({"compact", 4, 8000, 0}), in_table(0, 12, 0)) << "four calls of 2000 bytes";
  EXPECT_THAT(price({"compact", 1, 5000, 0}), in_table(0, 0, 6)) << "beyond the table along its last two";
  EXPECT_THAT(price({"compact", 1, 10, 0}), in_table(0, 0, 2)) << "level below the first";
  EXPECT_THAT(price({"top_k", 1, 1000, 0}), in_table(0, 10, 0)) << "straight over logarithms";
  EXPECT_THAT(price({"fetch", 2, 2 << 20, 0, true}), in_table(220, 0, 0)) << "two copies of 1 MiB from the host";
}

TEST_F(PolicyPrices, AnOperationTheProfileLacksIsPricedByTheRoofline) {
  const CostSetup with = load();
  const PolicyOp pool{"pool1d", 3, 90'000, 100};
  EXPECT_EQ(with.prices->policy(pool).ps, setup_of(roofline_experiment(bundle)).prices->policy(pool).ps);
  EXPECT_GT(with.prices->policy(pool).ps[static_cast<std::size_t>(Footing::kRoofline)], 0);
}

TEST_F(PolicyPrices, CountInTheCostOfAStep) {
  const auto cost = make_cost_model(load());
  const std::vector<PolicyOp> ops{{"compact", 1, 1000, 0}, {"pool1d", 1, 1000, 0}};
  StepShape shape = rows_shape({63});
  const StepCost without = cost->step(shape);
  shape.ops = ops;
  const StepCost step = cost->step(shape);
  EXPECT_EQ(step.of(CostPart::kPolicy), 2 * kMicrosecond + Picoseconds{1000}) << "the table, and 1000 bytes at a byte per picosecond";
  EXPECT_EQ(step.of(Footing::kInside) - without.of(Footing::kInside), 2 * kMicrosecond);
}

TEST_F(PolicyPrices, LintFindsTimesBeyondTheDatasheet) {
  const CostSetup setup = load();
  EXPECT_TRUE(lint_profile(*setup.profile, setup.model, setup.hardware).empty());
  Profile fast = *setup.profile;
  fast.policy = PolicyTimes(
      {{"compact", 1, 1, 1, 1 << 30, 0, 1 * kMicrosecond, 0}, {"host_to_device", 1, 0, 0, 1 << 20, 0, 10 * kMicrosecond, 0}}, {});
  const auto findings = lint_profile(fast, setup.model, setup.hardware);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[0].text, HasSubstr("compact at bytes 1073741824"));
  EXPECT_THAT(findings[1].text, HasSubstr("host_to_device at bytes 1048576"));
}

TEST_F(PolicyPrices, AFaultyTableIsNamedWithItsLine) {
  folder.write("tp1/policy.csv", "op,rows,tokens,outputs,bytes,flops,time_ns,spread_frac\ncompact,1,1,1,0,0,5,0\n");
  EXPECT_THAT(error_of([&] { static_cast<void>(load()); }), HasSubstr("policy.csv:2: 'bytes' is 0"));
}

TEST_F(PolicyPrices, TheProfileSaysWhatAttentionReadsOfPackedKv) {
  Profile p = read_kvlab_profile(folder.path(), 1);
  EXPECT_EQ(p.kv_reads, KvReads::kStored);
  p.kv_reads = KvReads::kDecoded;
  const TempFolder own;
  write_kvlab_profile(p, own.path());
  const auto with = [&](const std::string& option) { return load_from(own.path() + option); };
  EXPECT_EQ(with("").profile->kv_reads, KvReads::kDecoded) << "as it was measured";
  EXPECT_EQ(with(", kv_reads: decoded").profile->kv_reads, KvReads::kDecoded);
  EXPECT_EQ(with(", kv_reads: stored").profile->kv_reads, KvReads::kStored);
  EXPECT_EQ(with(", kv_reads: unpacked").profile->kv_reads, KvReads::kUnpacked);
  EXPECT_NE(with("").profile_hash, written);
  EXPECT_NE(with(", kv_reads: unpacked").profile_hash, written);
  EXPECT_NE(with(", kv_reads: unpacked").profile_hash, with(", kv_reads: decoded").profile_hash);
  EXPECT_EQ(with(", kv_reads: stored").profile_hash, written) << "the profile without it";
  EXPECT_THAT(error_of([&] { static_cast<void>(with(", kv_reads: packed")); }), HasSubstr("kv_reads"));
  p.kv_reads = KvReads::kUnpacked;
  const TempFolder other;
  write_kvlab_profile(p, other.path());
  EXPECT_EQ(load_from(other.path()).profile->kv_reads, KvReads::kUnpacked);
}

TEST_F(PolicyPrices, AProfileMayBringItsModelAndHardware) {
  Profile p = read_kvlab_profile(folder.path(), 1);
  p.model = "mine", p.hardware = "box";
  const TempFolder own;
  own.write("models/mine.yaml", kTinyModel);
  own.write("hardware/box.yaml", kTinyCard);
  write_kvlab_profile(p, own.path());
  const CostSetup setup = setup_of("profile: {kvlab: {path: " + own.path() + "}}\n");
  EXPECT_EQ(std::tuple(setup.model.name, setup.hardware.source), std::tuple("mine", "made up for tests"));
}

// Transfers from lower tiers: places, and the computation beside which they run.

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
