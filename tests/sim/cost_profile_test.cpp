#include "base/hash.h"
#include "base/read_file.h"
#include "sim/cost/profile.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

constexpr std::int64_t kUs = 1'000'000;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// True if two rows of different lengths cost something else than two equal ones with as many tokens.
bool prices_unevenness(CostModel& cost) {
  StepShape uneven = decode_shape(2, 1000, 900, 100), even = decode_shape(2, 1000, 500, 500);
  uneven.decode_kv_squares = 900 * 900 + 100 * 100;
  even.decode_kv_squares = 2 * 500 * 500;
  return cost.step(uneven).total != cost.step(even).total;
}

TEST(SampleGrid, InterpolatesAndExtrapolates) {
  const SampleGrid grid(1, {{{2}, Picoseconds{100}, 0}, {{4}, Picoseconds{300}, 0}, {{8}, Picoseconds{500}, 0}});
  const auto at = [&](double x) { return grid.at(std::span(&x, 1)); };
  // Along the last two beyond them, level below the first.
  for (const auto& [x, ps, footing] : {std::tuple{4, 300, Footing::kInside},
                                       {3, 200, Footing::kInterpolated},
                                       {16, 900, Footing::kExtrapolated},
                                       {1, 100, Footing::kExtrapolated}})
    EXPECT_EQ(std::tuple(at(x).ps, at(x).footing), std::tuple(ps, footing)) << x;
  const SampleGrid falling(1, {{{2}, Picoseconds{300}, 0}, {{4}, Picoseconds{100}, 0}});
  const double far = 100;
  EXPECT_EQ(falling.at(std::span(&far, 1)).ps, 100);  // never falls beyond the last sample
  const SampleGrid one(1, {{{2}, Picoseconds{300}, 0}});
  EXPECT_EQ(one.at(std::span(&far, 1)).ps, 300);
}

// Each value of an axis has its own values of the next one.
TEST(SampleGrid, RaggedAxes) {
  const SampleGrid grid(
      2, {{{1, 0}, Picoseconds{10}, 0}, {{1, 10}, Picoseconds{20}, 0}, {{3, 5}, Picoseconds{40}, 0}, {{3, 9}, Picoseconds{48}, 0}});
  EXPECT_EQ(std::tuple(grid.at(std::array{1.0, 5.0}).ps, grid.at(std::array{3.0, 7.0}).ps, grid.at(std::array{2.0, 7.0}).ps),
            std::tuple(15, 44, (17 + 44) / 2.0));
  EXPECT_EQ(grid.at(std::array{3.0, 5.0}).footing, Footing::kInside);
  EXPECT_THAT(grid.last_axis_knots(std::array{2.0}), ::testing::ElementsAre(0, 5, 9, 10));
  EXPECT_THAT(grid.last_axis_knots(std::array{1.0}), ::testing::ElementsAre(0, 10));
}

struct BundleCost : ::testing::Test {
  CostSetup load() { return setup_of(tiny_experiment(folder)); }
  TinyBundle folder;
};
using ProfileLint = BundleCost;

TEST_F(BundleCost, StepsByHand) {
  const auto cost = make_cost_model(load());
  // Four rows of 99 cached tokens: length 100 with their own. A layer has 2 norms, qkv, rope, o, gate_up, act, down at 1.4 us.
  StepCost step = cost->step(decode_shape(4, 4 * 99));
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 2 * 8 * 1'400'000 + 2 * 1'400'000);  // and embedding and final norm once
  EXPECT_NEAR(static_cast<double>(step.of(CostPart::kAttention).count()), 2 * 14.0 * kUs, 400);
  EXPECT_EQ(step.of(CostPart::kHead).count(), (5 + 4 + 2) * kUs);
  EXPECT_EQ(step.of(Footing::kInside), step.of(CostPart::kLinear));                                      // 4 tokens were measured
  EXPECT_EQ(step.of(Footing::kInterpolated), step.of(CostPart::kAttention) + step.of(CostPart::kHead));  // length 100, 4 sequences: not
  EXPECT_EQ(step.of(Footing::kExtrapolated).count(), 0);
  // Beyond the tables: 200 tokens are 21 us in each dense layer.
  StepShape padded = decode_shape(4, 4 * 99);
  padded.padding_rows = 196;
  step = cost->step(padded);
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 18 * 21 * kUs);
  EXPECT_EQ(step.of(Footing::kExtrapolated).count(), step.of(CostPart::kLinear).count());
}

// The longest prompt is looked up with the decode rows, the others alone.
TEST_F(BundleCost, MixedSteps) {
  const auto cost = make_cost_model(load());
  const std::vector<PrefillPiece> prompts{{16, 64}, {40, 32}};
  StepShape shape = decode_shape(4, 4 * 255, 255, 255);
  shape.prefills = prompts;
  // 40 + (32 + 4 * 256) / 100 and 16 + 64 / 100 us, in each of 2 layers.
  EXPECT_EQ(cost->step(shape).of(CostPart::kAttention).count(), 2 * (50'560'000 + 16'640'000));
  const StepCost small = prompt_cost(*cost, {3, 64});
  EXPECT_EQ(small.of(CostPart::kAttention).count(), 2 * 16'640'000);  // below the smallest chunk: as the smallest
  EXPECT_EQ(small.of(Footing::kExtrapolated).count(), small.of(CostPart::kAttention).count());
}

TEST_F(BundleCost, SkewLiesBetweenMeanAndLongest) {
  const std::string fit =
      "skew_fit:\n  enabled: true\n  bucket_axes:\n    n_bins: [0, 1000]\n    n_labels: [all]\n    skew_rate_bins: [-0.01, 0.5, 1.01]\n    "
      "skew_rate_labels: [low, high]\n"
      "    kv_big_bins: [0, 100000]\n    kv_big_labels: [all]\n    kp_bins: [-1, 0, 100000]\n    kp_labels: [none, some]\n  per_tp:\n"
      "    1: {alpha_default: 0.25, bucket_table: tp1/skew_fit.csv}\n";
  write_tiny_bundle(folder, fit);
  folder.write("tp1/skew_fit.csv",
               "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n0,all,low,all,none,0.5,4\n16,all,low,all,some,0.125,4\n");
  const auto cost = make_cost_model(load());
  EXPECT_TRUE(prices_unevenness(*cost));
  const auto attention = [&](StepShape shape) { return static_cast<double>(cost->step(shape).of(CostPart::kAttention).count()) / 2 / kUs; };
  const auto two_lengths = [](int num_long) {
    const int num_short = 4 - num_long;
    StepShape shape = decode_shape(4, num_short * 63 + num_long * 255, 255, 63);
    shape.decode_kv_squares = num_short * 63 * 63 + num_long * 255 * 255;
    return shape;
  };
  // One row in four is long: skew 0.25, low. Even batches of the mean length 112 and of the longest take 14.48 and 20.24 us.
  EXPECT_NEAR(attention(two_lengths(1)), 14.48 + 0.5 * (20.24 - 14.48), 1e-3);
  // Three in four: high, no entry: alpha_default.
  EXPECT_NEAR(attention(two_lengths(3)), 18.32 + 0.25 * (20.24 - 18.32), 1e-3);
  EXPECT_NEAR(attention(decode_shape(4, 4 * 255, 255, 255)), 20.24, 1e-3);
  StepShape mixed = two_lengths(1);
  const PrefillPiece known{16, 64}, other{20, 64};
  mixed.prefills = {&known, 1};
  EXPECT_NEAR(attention(mixed), 16.64 + 4.48 + 0.125 * 5.76, 1e-3);
  mixed.prefills = {&other, 1};  // not a profiled number of prompt tokens
  EXPECT_NEAR(attention(mixed), 20.64 + 4.48 + 0.25 * 5.76, 1e-3);
}

// The flag in meta.yaml decides, even if skew tables are in the folder.
TEST_F(BundleCost, SkewTableIsIgnoredUnlessEnabled) {
  folder.write("tp1/skew_fit.csv", "nonsense\n1\n");
  EXPECT_FALSE(prices_unevenness(*make_cost_model(load())));
}

TEST_F(BundleCost, ErrorsNameFileAndLine) {
  const auto error_with = [&](const std::string& file, const std::string& from, const std::string& to) {
    write_tiny_bundle(folder);
    folder.write(file, replaced(read_file(folder.path() + "/" + file), from, to));
    return error_of([&] { load(); });
  };
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,1,1.1", "act_fun,1,1.1"),
              HasSubstr("tp1/dense.csv:2: unknown layer 'act_fun'; did you mean 'act_fn'"));
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,1,1.100000", "act_fn,1,nan"),
              HasSubstr("tp1/dense.csv:2: 'time_us' = 'nan': not a finite number"));
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,1,1.100000", "act_fn,1,-2"),
              HasSubstr("tp1/dense.csv:2: 'time_us' = '-2': a time must be above 0"));
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,2,", "act_fn,1,"), HasSubstr("tp1/dense.csv:3: the same point as"));
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,2,", "act_fn,5,"), HasSubstr("tp1/dense.csv:4: out of order"));
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,2,1.200000", "act_fn,2"),
              HasSubstr("tp1/dense.csv:3: has 2 fields where the header has 3"));
  EXPECT_THAT(error_with("tp1/dense.csv", "act_fn,2,", "act_fn,2.5,"), HasSubstr("not a whole number"));
  EXPECT_THAT(error_with("tp1/dense.csv", "layer,tokens,time_us", "layer,tokens,time_ms"), HasSubstr("has no column 'time_us'"));
  EXPECT_THAT(error_with("tp1/attention.csv", "0,0,1,16,", "0,0,1,-16,"), HasSubstr("tp1/attention.csv:2: 'kv_decode' = '-16'"));
  EXPECT_THAT(error_with("meta.yaml", "enabled: false", "enabled: true"), HasSubstr("meta.yaml: skew_fit is enabled but"));
  write_tiny_bundle(folder);
  EXPECT_THAT(error_of([&] { setup_of(tiny_experiment(folder) + "parallel: {tp: 2}\n"); }), HasSubstr("no folder tp2; there is tp1"));
  std::filesystem::remove(folder.path() + "/tp1/attention.csv");
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("tp1/attention.csv: cannot be opened"));
}

TEST_F(BundleCost, GapsAreAnErrorOrRoofline) {
  std::stringstream in(read_file(folder.path() + "/tp1/dense.csv"));
  std::string others;
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with("o_proj,")) others += line + "\n";
  folder.write("tp1/dense.csv", others);
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("no table of o_proj for tp 1"));
  const auto cost = make_cost_model(setup_of(tiny_experiment(folder, "bundle", ", missing: roofline")));
  // o_proj on 4 tokens: 16 * 16 weights and 4 * 32 activations of two bytes, a byte per picosecond.
  const StepCost step = cost->step(decode_shape(4, 4 * 63));
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 2 * (7 * 1'400'000 + 512 + 256) + 2 * 1'400'000);
  EXPECT_EQ(step.of(Footing::kRoofline).count(), 2 * (512 + 256));
}

TEST_F(BundleCost, OtherDegreesAreScaledByTheRoofline) {
  const std::string experiment = tiny_experiment(folder, "bundle", ", missing: roofline");
  const StepCost one = make_cost_model(setup_of(experiment))->step(decode_shape(4, 4 * 63));
  const StepCost two = make_cost_model(setup_of(experiment + "parallel: {tp: 2}\n"))->step(decode_shape(4, 4 * 63));
  EXPECT_NEAR(two.of(CostPart::kAttention).real(), one.of(CostPart::kAttention).real() / 2, 2);  // half the heads
  EXPECT_LT(two.of(CostPart::kLinear).count(), one.of(CostPart::kLinear).count());
  EXPECT_GT(two.of(CostPart::kCollective).count(), 0);
  // Not cut: norms, embedding, sampler.
  EXPECT_EQ(two.of(Footing::kInside).count() + two.of(Footing::kInterpolated).count(), 6 * 1'400'000 + 2 * kUs);
}

// ---- our own format ----

void expect_same_costs(const CostSetup& a, const CostSetup& b) {
  const auto first = make_cost_model(a), second = make_cost_model(b);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t x = hash_combine(7, static_cast<std::uint64_t>(i));
    const auto rows = static_cast<std::int32_t>(x % 200), kv = static_cast<std::int32_t>(x / 200 % 5000) + 1;
    StepShape shape = decode_shape(rows, std::int64_t{rows} * kv, kv + 100, kv - 1);
    const PrefillPiece piece{static_cast<std::int32_t>(x / 1'000'000 % 3000), static_cast<std::int32_t>(x / 7'000'000 % 3000)};
    if (i % 2 == 0 && piece.new_tokens > 0) shape.prefills = {&piece, 1};
    const StepCost one = first->step(shape), two = second->step(shape);
    ASSERT_EQ(one.total.count(), two.total.count()) << i;
    ASSERT_EQ(one.times, two.times) << i;
  }
}

TEST(KvlabProfile, TinyBundleConvertsExactly) {
  const TempFolder folder, converted;
  write_tiny_bundle(folder);
  const CostSetup bundle = setup_of(tiny_experiment(folder));
  write_kvlab_profile(*bundle.profile, converted.path());
  const CostSetup ours = setup_of(tiny_experiment(converted, "kvlab"));
  EXPECT_EQ(std::tuple(ours.profile_hash, ours.profile_date, ours.profile->options.at("block_size")),
            std::tuple(bundle.profile_hash, "2026-01-02", "16"));
  expect_same_costs(bundle, ours);
  EXPECT_THAT(error_of([&] { write_kvlab_profile(*bundle.profile, converted.path()); }), HasSubstr("exists already"));
}

using RealProfile = RealBundleTest;

TEST_P(RealProfile, ConvertsExactly) {
  const TempFolder converted;
  write_kvlab_profile(*setup_.profile, converted.path());
  const CostSetup ours = setup_of("profile: {kvlab: {path: " + converted.path() + "}}\n");
  EXPECT_EQ(std::tuple(ours.profile_hash, ours.model.name), std::tuple(setup_.profile_hash, "llama-3.1-8b"));
  EXPECT_EQ(prices_unevenness(*make_cost_model(ours)), std::string(GetParam()) == "RTXPRO6000");
  expect_same_costs(setup_, ours);
}

// No GEMM, attention or sampling entry of the two real profiles beats its datasheet; what stays in L2 is only a warning.
TEST_P(RealProfile, LintFindsNoErrors) {
  for (const LintFinding& f : lint_profile(*setup_.profile, setup_.model, setup_.hardware)) {
    EXPECT_EQ(f.severity, LintFinding::Severity::kWarning) << f.text;
    EXPECT_THAT(f.text, ::testing::Not(::testing::AnyOf(HasSubstr("_proj at"), HasSubstr("lm_head"))));
  }
  EXPECT_FALSE(setup_.profile->notes.empty());
}

INSTANTIATE_TEST_SUITE_P(Cards, RealProfile, ::testing::Values("RTX4090", "RTXPRO6000"));

// Values read off dense.csv, per_sequence.csv and attention.csv of the 4090, summed by hand (microseconds).
TEST_P(RealProfile, SingleRow) {
  if (std::string(GetParam()) != "RTX4090") return;
  const StepCost step = make_cost_model(setup_)->step(decode_shape(1, 15));
  const double attention = 9.31067 * 32;
  EXPECT_NEAR(static_cast<double>(step.of(CostPart::kAttention).count()) / kUs, attention, 1e-6);
  EXPECT_GT(static_cast<double>(step.of(CostPart::kHead).count()) / kUs, 1096.93);
  EXPECT_EQ(step.of(Footing::kInside).count(), step.of(CostPart::kLinear).count() + step.of(CostPart::kHead).count());
}

TEST(KvlabProfile, Errors) {
  const TempFolder folder, converted;
  write_tiny_bundle(folder);
  write_kvlab_profile(*setup_of(tiny_experiment(folder)).profile, converted.path());
  const auto error_with = [&](const std::string& file, const std::string& from, const std::string& to) {
    const std::string before = read_file(converted.path() + "/" + file);
    converted.write(file, replaced(before, from, to));
    std::string message = error_of([&] { setup_of(tiny_experiment(converted, "kvlab")); });
    converted.write(file, before);
    return message;
  };
  EXPECT_THAT(error_with("meta.yaml", "schema_version: 1", "schema_version: 2"), HasSubstr("'schema_version' = 2 is outside [1, 1]"));
  EXPECT_THAT(error_with("meta.yaml", "time_unit: ns", "time_unit: us"), HasSubstr("unknown value 'us'"));
  EXPECT_THAT(error_with("tp1/ops.yaml", "per_layer: 2", "per_layer: -2"), HasSubstr("'per_layer' = -2"));
  EXPECT_THAT(error_with("tp1/act_fn.csv", "1,1100.000,0", "1,1100.000,-1"), HasSubstr("tp1/act_fn.csv:2: 'spread_frac' is below 0"));
}

// ---- Vidur ----

std::string vidur_mlp(int tp) {
  const char* const ops[] = {"emb",         "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
                             "mlp_up_proj", "mlp_act",         "mlp_down_proj", "add"};
  std::string text;
  for (const char* op : ops) text += std::string("time_stats.") + op + ".median,";
  text += "n_head,num_tokens,num_tensor_parallel_workers\n";
  for (const int tokens : {64, 8, 1}) {  // Vidur's files descend
    for (std::size_t i = 0; i < 10; ++i) text += std::to_string(0.001 * (1 + tokens)) + ",";
    text += "4," + std::to_string(tokens) + "," + std::to_string(tp) + "\n";
  }
  return text;
}

const char* const kVidurAttention =
    "time_stats.attn_prefill.median,time_stats.attn_decode.median,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,"
    "is_prefill\n"
    "0.040,nan,1,1,32,0,True\n0.080,nan,1,1,64,0,True\n0.1,nan,1,2,32,0,True\n"
    "nan,0.010,1,1,0,63,False\nnan,0.030,1,1,0,127,False\nnan,0.020,1,4,0,63,False\nnan,0.060,1,4,0,127,False\n";

TEST(VidurCost, StepsByHand) {
  const TempFolder folder;
  folder.write("mlp.csv", vidur_mlp(1));
  folder.write("attention.csv", kVidurAttention);
  const CostSetup setup = setup_of(tiny_experiment(folder, "vidur"));
  EXPECT_THAT(setup.profile->notes, ::testing::Contains("attention.csv: 1 rows of several prompts in one call were left out"));
  const auto cost = make_cost_model(setup);
  const StepCost step = cost->step(decode_shape(4, 4 * 95));
  // 4 tokens cost as the 8 measured next, 9 us per operation: nine of them in each of 2 layers, embedding once; final norm (4 + 1 rows in
  // and out) by roofline.
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 2 * 9 * 9 * kUs + 9 * kUs + (4 * 4 + 1) * 16 * 2);
  EXPECT_NEAR(static_cast<double>(step.of(CostPart::kAttention).count()), 2 * 40 * kUs, 400);
  EXPECT_EQ(step.of(Footing::kRoofline).count(), step.of(CostPart::kHead).count() + (4 * 4 + 1) * 16 * 2);
  // No mixed rows in the table: prompts and decodes add.
  StepShape mixed = decode_shape(4, 4 * 63);
  const PrefillPiece piece{64, 0};
  mixed.prefills = {&piece, 1};
  EXPECT_EQ(cost->step(mixed).of(CostPart::kAttention).count(), 2 * (80 + 20) * kUs);
}

TEST(VidurCost, AllReduceTable) {
  const TempFolder folder;
  folder.write("mlp.csv", vidur_mlp(2));
  folder.write("attention.csv", replaced(kVidurAttention, "nan,0.010,1,", "nan,0.010,2,"));
  EXPECT_THAT(error_of([&] { setup_of(tiny_experiment(folder, "vidur")); }), HasSubstr("mlp.csv: no rows for tp 1; there is tp 2"));
  std::string attention = kVidurAttention;
  for (const char* const from : {",1,1,", ",1,4,"})
    for (std::size_t at = attention.find(from); at != std::string::npos; at = attention.find(from)) attention[at + 1] = '2';
  folder.write("attention.csv", attention);
  folder.write("all_reduce.csv", ",time_stats.all_reduce.median,rank,num_workers,size\n0,0.010,0,2,64\n1,0.020,0,2,128\n2,0.9,0,4,128\n");
  const StepCost step = make_cost_model(setup_of(tiny_experiment(folder, "vidur") + "parallel: {tp: 2}\n"))->step(decode_shape(4, 4 * 63));
  // 4 tokens * 16 channels * 2 bytes; twice in each of 2 layers and for the embedding.
  EXPECT_EQ(step.of(CostPart::kCollective).count(), 5 * 20 * kUs);
  EXPECT_EQ(step.of(Footing::kInside).count(), step.of(CostPart::kCollective).count());
}

// ---- lint ----

std::vector<std::string> lint_texts(const TempFolder& folder, LintFinding::Severity severity) {
  const CostSetup setup = setup_of(tiny_experiment(folder, "bundle", ", impossible: keep"));
  std::vector<std::string> texts;
  for (const LintFinding& f : lint_profile(*setup.profile, setup.model, setup.hardware)) {
    if (f.severity == severity) texts.push_back(f.text);
  }
  return texts;
}

TEST_F(ProfileLint, NamesImpossibleEntries) {
  using Severity = LintFinding::Severity;
  EXPECT_THAT(lint_texts(folder, Severity::kError), ::testing::IsEmpty());
  EXPECT_THAT(lint_texts(folder, Severity::kWarning), ::testing::IsEmpty());
  // down_proj on 128 tokens moves 128 * (32 + 16) * 2 + 1024 bytes: 13.3 ns at 1 TB/s.
  const std::string dense = read_file(folder.path() + "/tp1/dense.csv");
  folder.write("tp1/dense.csv", replaced(dense, "down_proj,128,13.800000", "down_proj,128,0.0121"));
  EXPECT_THAT(lint_texts(folder, Severity::kError),
              ::testing::ElementsAre(HasSubstr("down_proj at tokens 128: 0.0121 us is 1.1 times faster than the memory bandwidth")));
  EXPECT_THAT(lint_texts(folder, Severity::kWarning), ::testing::ElementsAre(HasSubstr("100 % less than at tokens 64")));
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("'impossible: keep' uses it all the same"));
  folder.write("tp1/dense.csv", replaced(dense, "down_proj,128,13.800000", "down_proj,128,0.0131"));  // within 2 %
  EXPECT_THAT(lint_texts(folder, Severity::kError), ::testing::IsEmpty());
}

TEST_F(ProfileLint, WhatFitsInL2IsAWarning) {
  folder.write("tp1/dense.csv", replaced(read_file(folder.path() + "/tp1/dense.csv"), "down_proj,128,13.800000", "down_proj,128,0.0121"));
  const std::string experiment = tiny_experiment(folder);
  folder.write("card.yaml", std::string(kTinyCard) + "l2_bytes: 20000\n");
  const CostSetup setup = setup_of(experiment);
  EXPECT_THAT(setup.profile->notes, ::testing::Contains(HasSubstr("may have been in the L2 cache")));
}

TEST_F(ProfileLint, WrongUnit) {
  std::string per_sequence = "layer,sequences,time_us\nlm_head,1,0.000001\nlm_head,8,0.000004\nsampler,1,2\nsampler,8,2\n";
  folder.write("tp1/per_sequence.csv", per_sequence);
  EXPECT_THAT(lint_texts(folder, LintFinding::Severity::kError), ::testing::ElementsAre(HasSubstr("lm_head at sequences 8: 4e-06 us is")));
}

// A sort takes long for its bytes; nothing is faster than its bytes.
TEST_F(ProfileLint, PolicyOperationsMayBeSlow) {
  const CostSetup setup = load();
  const auto findings = [&](std::int64_t ps) {
    Profile profile = *setup.profile;
    profile.policy = PolicyTimes({{"top_k", 1, 1000, 10, 4'000'000, 0, Picoseconds{ps}, 0}}, {});  // 4 us of bytes at 1 TB/s
    return lint_profile(profile, setup.model, setup.hardware);
  };
  EXPECT_THAT(findings(100 * kUs), ::testing::IsEmpty());
  const auto slow = findings(4000 * kUs), fast = findings(kUs / 1000);
  ASSERT_EQ(std::pair(slow.size(), fast.size()), std::pair(std::size_t{1}, std::size_t{1}));
  EXPECT_EQ(slow[0].severity, LintFinding::Severity::kWarning);
  EXPECT_THAT(slow[0].text, HasSubstr("4000 us is 1e+03 times what the datasheet allows"));
  EXPECT_EQ(fast[0].severity, LintFinding::Severity::kError);
}

}  // namespace
}  // namespace kvlab
