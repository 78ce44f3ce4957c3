// Prices of a policy's operations: from the profile where it has them, else from the roofline.

#include "sim/cost/profile.h"
#include "sim/cost/profile_lint.h"
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
}

// Values that a profile sets come back as written, and a run without the option takes them from there.
TEST_F(PolicyPrices, KvReadsComeBackFromTheFolder) {
  for (const KvReads reads : {KvReads::kStored, KvReads::kDecoded, KvReads::kUnpacked}) {
    Profile p = read_kvlab_profile(folder.path(), 1);
    p.kv_reads = reads;
    const TempFolder own;
    write_kvlab_profile(p, own.path());
    EXPECT_EQ(read_kvlab_profile(own.path(), 1).kv_reads, reads);
  }
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

}  // namespace
}  // namespace kvlab
