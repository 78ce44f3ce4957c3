// Every operation of sim/cost/operations.h is known where its name is used: to the cases that time it, to the cost model, and to the
// readers and the lint of profiles.
#include "sim/cost/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/text.h"
#include "calibrate/cases/kernel_case.h"
#include "calibrate/recipe_ops.h"
#include "calibrate/tables.h"
#include "sim/cost/profile.h"
#include "sim/cost/roofline_prices.h"
#include "sim/cost/step_work.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/engine/small_model.h"
#include "tests/error_of.h"
#include "tests/test_files.h"

namespace kvlab {
namespace {

const std::string kModelFiles = KVLAB_SOURCE_DIR "/profiles/models", kCards = KVLAB_SOURCE_DIR "/profiles/hardware";
constexpr Picoseconds kTime{7'000'000};
constexpr std::int32_t kCount = 64;
constexpr std::int64_t kBytes = 1 << 28;

bool has_own_table(const Operation& o) { return o.family == OpFamily::kTokens || o.family == OpFamily::kSequences; }

std::set<OpId> priced_ops(const ModelSpec& m) {
  std::vector<OpWork> ops;
  for (const LayerClass& layers : layer_classes(m)) layer_ops(m, Parallel{}, layers, kCount, ops);
  step_ops(m, Parallel{}, kCount, ops);
  head_ops(m, Parallel{}, kCount, ops);
  for (const AttentionClass& layers : attention_classes(m)) {
    const AttentionWork work(m, Parallel{}, layers);
    if (!work.has_ops()) continue;
    ops.push_back(work.prefill_op(kCount));
    for (const OpWork& op : work.decode_ops(kCount)) ops.push_back(op);
  }
  std::set<OpId> all;
  for (const OpWork& op : ops) all.insert(op.op);
  return all;
}

// Their layers have all operations: plain, experts, latent attention, linear attention.
std::vector<ModelSpec> models() {
  std::vector<ModelSpec> all;
  for (const char* name : {"qwen3-8b", "qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b"})
    all.push_back(load_model_spec(name, kModelFiles));
  return all;
}

// The first that has the operation; of those of plain attention and of policies any has.
const ModelSpec& model_with(OpId op) {
  static const std::vector<ModelSpec> all = models();
  const auto at = std::find_if(all.begin(), all.end(), [&](const ModelSpec& m) { return priced_ops(m).contains(op); });
  return at == all.end() ? all.front() : *at;
}

// True: it has no times of its own in any profile.
bool is_always_a_part(const Operation& o) {
  return o.part_of == OpFamily::kMoe || (o.part_of == OpFamily::kAttention && o.family == OpFamily::kAttention);
}

// One entry at `time` in the operation's table, and nothing else.
Profile profile_of(const Operation& o, Picoseconds time) {
  Profile p;
  p.tp = 1, p.attention_has_append = false;
  const std::string name(o.name);
  switch (o.family) {
    case OpFamily::kTokens:
    case OpFamily::kSequences:
      p.ops.push_back({name, name, o.family, o.per_layer, SampleGrid(1, {{{kCount}, time, 0}})});
      break;
    case OpFamily::kPolicy:
    case OpFamily::kCopy:
      p.policy = PolicyTimes({{name, 1, 1, 1, kBytes, 0, time, 0}}, {});
      break;
    case OpFamily::kAttention:
      p.attention = o.op == OpId::kAttentionPrefill ? SampleGrid(4, {{{kCount, 0, 0, 0}, time, 0}})
                                                    : SampleGrid(4, {{{0, 0, kCount, kCount}, time, 0}});
      break;
    case OpFamily::kMoe:
      p.moe = SampleGrid(2, {{{kCount, kCount}, time, 0}});
      break;
    case OpFamily::kCollective:
      p.collectives.push_back({Collective::kAllReduce, 2, "", "", SampleGrid(1, {{{kCount}, time, 0}}), {""}});
      break;
  }
  return p;
}

TEST(Operations, HaveACaseOnEachDeviceOrSayWhyNot) {
  for (const Operation& o : kOperations)
    for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kGpu}) {
      const std::string timed(kind == DeviceKind::kCpu ? o.cpu : o.gpu);
      if (timed.empty()) {
        EXPECT_FALSE(o.why_untimed.empty()) << o.name;
        continue;
      }
      const std::string format(kind == DeviceKind::kCpu ? "f32" : o.gpu_format.empty() ? "bf16" : o.gpu_format);
      EXPECT_NE(find_family(kind, timed, format), nullptr) << o.name << ": " << timed << "/" << format;
    }
}

// A shape has the axes of its case: shape_at refuses an axis that it has no value for.
TEST(Operations, AreCalibratedInTheTablesOrder) {
  const ModelSpec m = load_model_spec("qwen3-8b", kModelFiles);
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kGpu}) {
    std::vector<OpId> expected, tables;
    for (const Operation& o : kOperations)
      if (!(kind == DeviceKind::kCpu ? o.cpu : o.gpu).empty()) expected.push_back(o.op);
    for (const CalibrationTable& t : calibration_tables(m, kind, {})) {
      tables.push_back(*t.op);
      const Shape shape = shape_at(t, m, {t.coarse[0].back(), t.axes() == 2 ? t.coarse[1].back() : 0});
      const KernelFamily* family = find_family(kind, t.family, t.format);
      ASSERT_NE(family, nullptr) << t.name;
      for (const auto& [axis, letter] : family->axes) EXPECT_TRUE(shape.contains(axis)) << t.name << axis;
    }
    EXPECT_EQ(tables, expected);
  }
}

TEST(Operations, OfPoliciesAreNamedAsTheirCalls) {
  const auto cpu = make_cpu_device();
  for (const Operation& o : kOperations) {
    if (o.family != OpFamily::kPolicy) continue;
    const KernelFamily* family = find_family(DeviceKind::kCpu, std::string(o.cpu), "f32");
    ASSERT_NE(family, nullptr) << o.name;
    EXPECT_EQ(family->prepare(*cpu, family->small.front(), {})->counts().op, o.name);
  }
}

TEST(Operations, AreThoseOfTheCostModel) {
  std::set<OpId> expected, priced;
  for (const ModelSpec& m : models()) priced.merge(priced_ops(m));
  for (const Operation& o : kOperations)
    if (has_own_table(o) || o.family == OpFamily::kMoe || is_always_a_part(o)) expected.insert(o.op);
  EXPECT_EQ(priced, expected);
}

// The first class of layers that has the operation; 0: none has.
std::size_t class_with(const ModelSpec& m, OpId op) {
  const std::vector<LayerClass> classes = layer_classes(m);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    std::vector<OpWork> ops;
    layer_ops(m, Parallel{}, classes[i], kCount, ops);
    if (std::any_of(ops.begin(), ops.end(), [&](const OpWork& work) { return work.op == op; })) return i;
  }
  return 0;
}

// The operation's price at the table's point, with what else is priced in the same sum.
double price_of(const Operation& o, Picoseconds time) {
  const ModelSpec& m = model_with(o.op);
  const HardwareSpec card = load_hardware_spec("h100", kCards);
  const auto collectives = std::make_shared<const Collectives>(CollectiveTables{}, CollectiveTables{}, card.links(), EngineName{});
  const auto roofline = std::make_shared<const RooflinePrices>(m, card, Parallel{}, collectives);
  const ProfilePrices prices(std::make_shared<const Profile>(profile_of(o, time)), roofline, roofline);
  if (o.family == OpFamily::kPolicy || o.family == OpFamily::kCopy)
    return prices.policy({o.name, 1, kBytes, 0, o.op == OpId::kHostToDevice}).total();
  if (o.op == OpId::kAttentionDecode) return prices.decode_attention(0, kCount).knots.back().ps / static_cast<double>(m.layers);
  const PrefillPiece piece{kCount, 0};
  StepShape shape;
  shape.prefills = std::span(&piece, 1);
  if (o.op == OpId::kAttentionPrefill) return prices.mixed_attention(shape).total() / static_cast<double>(m.layers);
  const TokenPrice tokens = prices.tokens(kCount);
  return tokens.layers[class_with(m, o.op)].linear.total() + tokens.once.total() + prices.head(kCount).total();
}

// More time in the table raises the price by the same amount.
TEST(Operations, ArePricedByTheirTables) {
  for (const Operation& o : kOperations) {
    if (is_always_a_part(o) || o.family == OpFamily::kCollective) continue;  // a collective needs several devices
    EXPECT_NEAR(price_of(o, 3 * kTime) - price_of(o, kTime), 2 * std::max(1, o.per_layer) * kTime.real(), 1e-2) << o.name;
  }
}

TEST(Operations, AreFoundInAProfile) {
  for (const Operation& o : kOperations) {
    if (is_always_a_part(o)) continue;
    EXPECT_TRUE(has_times(profile_of(o, kTime), o.op)) << o.name;
    EXPECT_FALSE(has_times(Profile{}, o.op)) << o.name;
  }
  EXPECT_TRUE(has_times(profile_of(operation(OpId::kMoe), kTime), OpId::kRouter)) << "part of the experts' table";
  for (const OpId op : {OpId::kQAbsorb, OpId::kVAbsorb, OpId::kKvBProj})
    EXPECT_TRUE(has_times(profile_of(operation(OpId::kAttentionDecode), kTime), op)) << "part of attention's table";
}

TEST(Operations, AreLinted) {
  const HardwareSpec card = load_hardware_spec("h100", kCards);
  for (const Operation& o : kOperations) {
    if (is_always_a_part(o) || o.family == OpFamily::kCollective) continue;  // a link's rate is no limit of the lint
    const auto findings = lint_profile(profile_of(o, Picoseconds{1}), model_with(o.op), card);
    ASSERT_FALSE(findings.empty()) << o.name;
    const std::string table(has_own_table(o) || table_of(o.family) == "policy" ? o.name : table_of(o.family));
    EXPECT_THAT(findings.front().text, testing::StartsWith(table + " at")) << o.name;
  }
}

TEST(Operations, ComeBackFromAProfilesFiles) {
  for (const Operation& o : kOperations) {
    const TempFolder folder;
    const Profile written = profile_of(o, kTime);
    write_kvlab_profile(written, folder.path());
    const std::string file = has_own_table(o) ? std::string(o.name) : std::string(table_of(o.family));
    const std::string first = table_of(o.family) == "policy" ? "op," : "";
    EXPECT_THAT(read_file(folder.path() + "/tp1/" + file + ".csv"),
                testing::StartsWith(first + join(columns_of(o.family), ",") + ",time_ns,spread_frac\n"))
        << o.name;
    EXPECT_EQ(profile_hash(read_kvlab_profile(folder.path(), 1)), profile_hash(written)) << o.name;
  }
}

// On a GPU as its engine launches them, on the CPU as that does; what is counted is the same.
TEST(CalibrationTables, AreNamedForWhatIsTimed) {
  const auto tables = [](const char* model, DeviceKind kind) {
    std::map<std::string, std::string> all;
    for (const CalibrationTable& t : calibration_tables(load_model_spec(model, kModelFiles), kind, {}))
      if (t.kind == CalibrationTable::Kind::kOp) all[t.covers] = t.name + " " + t.family + "/" + t.format;
    return all;
  };
  const auto gpu = tables("llama-3.1-8b", DeviceKind::kGpu), normed = tables("qwen3-8b", DeviceKind::kGpu),
             cpu = tables("qwen3-8b", DeviceKind::kCpu);
  EXPECT_EQ(std::tuple(gpu.at("rotary_emb"), gpu.at("lm_head")), std::tuple("rope_qk rope_qk/bf16", "linear_head linear_head/bf16"));
  EXPECT_EQ(std::tuple(gpu.at("sampler"), gpu.at("append_kv")), std::tuple("sampler sampling/f32", "append_kv append_step/bf16"));
  EXPECT_EQ(gpu.at("qkv_proj"), "qkv_proj linear/bf16");
  EXPECT_EQ(std::tuple(normed.at("qkv_proj"), normed.at("qk_norm")), std::tuple("qkv_proj linear_set/bf16", "qk_norm rmsnorm_qk/bf16"));
  EXPECT_EQ(std::tuple(cpu.at("rotary_emb"), cpu.at("lm_head")), std::tuple("rotary_emb rope/f32", "lm_head linear/f32"));
  EXPECT_EQ(cpu.at("qk_norm"), "qk_norm rmsnorm/f32");
}

// Every operation by which sequences come back from rest has a table, and a case that times it.
TEST(CalibrationTables, CoverWhatUnpackingCalls) {
  std::map<std::string, std::string> tables;
  for (const CalibrationTable& t : calibration_tables(load_model_spec("qwen3-8b", kModelFiles), DeviceKind::kCpu, {}))
    if (t.kind == CalibrationTable::Kind::kPolicy) tables[t.name] = t.family;
  for (const char* recipe : {"kivi2", "fp8", "gear", "mustafar50", "think", "kcache"}) {
    UnpackOps unpacking(load_recipe(recipe), {4, 8, 2, 64, 128});
    unpacking.add(1024, 8 * 1024);
    std::vector<PolicyOp> ops;
    unpacking.take(ops);
    EXPECT_FALSE(ops.empty()) << recipe;
    for (const PolicyOp& op : ops) {
      const std::string name(op.name);
      ASSERT_TRUE(tables.contains(name)) << name << " of " << recipe;
      EXPECT_NE(find_family(DeviceKind::kCpu, tables[name], "f32"), nullptr) << name;
    }
  }
}

// Recipes' operations, timed in the engine, are those that a simulation pays for.

constexpr std::int32_t kTimedPrompt = 300, kTimedSequences = 2, kTimedSteps = 3;

ModelConfig timed_config() { return test::small_config(3); }

std::map<std::string, std::vector<Measured>> timed(const Recipe& recipe, bool stops = false) {
  const std::unique_ptr<EngineModel> model = make_random_model("cpu", timed_config());
  std::map<std::string, std::vector<Measured>> all;
  for (const RecipeCalls& c : time_recipe(*model, recipe, {{kTimedPrompt}, {kTimedSequences}, kTimedSteps, 1}, std::atomic<bool>(stops)))
    all[c.op].push_back(c.measured);
  return all;
}

// A step in which both sequences decode over their prompt and the tokens after it.
PolicyWork charged_step(RecipeFootprint& footprint) {
  constexpr std::int32_t kHeld = kTimedPrompt + kTimedSteps / 2;
  std::vector<SeqState> batch(kTimedSequences, SeqState{kHeld, kTimedPrompt, kHeld}.taking(1));
  PolicyWork work;
  footprint.charge(batch, work);
  return work;
}

class TimedRecipe : public testing::TestWithParam<const char*> {};

TEST_P(TimedRecipe, HasWhatASimulationPaysFor) {
  const Recipe recipe = load_recipe(GetParam());
  const auto found = timed(recipe);
  RecipeFootprint footprint(recipe, {3, 4, 2, 32, 64, 4}, 16, KvReads::kUnpacked, at_rest_of(recipe.name));
  for (const PolicyOp& op : charged_step(footprint).ops) {
    if (op.bytes == 0) continue;
    const std::string name(op.name);
    ASSERT_TRUE(found.contains(name)) << name;
    double nearest = 1e9;
    for (const Measured& m : found.at(name)) {
      EXPECT_GT(m.seconds, 0);
      nearest = std::min(nearest, std::abs(std::log(static_cast<double>(m.bytes * op.launches) / static_cast<double>(op.bytes))));
    }
    EXPECT_LE(nearest, std::log(2)) << name << ": counts that depend on data are bounds or means in the simulation";
  }
}

INSTANTIATE_TEST_SUITE_P(, TimedRecipe, testing::Values("kivi2", "gear", "infinigen", "kcache", "quest", "a2ats"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RecipeOps, WhatRestsIsTimedOverAllThatIsHeld) {
  const auto found = timed(load_recipe("kivi2"));
  constexpr std::int64_t kRows = 3 * 2, kHeld = kTimedPrompt + kTimedSteps / 2;
  ASSERT_EQ(found.at("at_rest/kivi2").size(), 1U);
  const Measured& m = found.at("at_rest/kivi2").front();
  EXPECT_EQ(std::tuple(m.tokens, m.bytes), std::tuple(kTimedSequences * kRows * kHeld, m.tokens * 2 * 32 * 4));
  EXPECT_GT(m.seconds, 1e-6);
  EXPECT_FALSE(timed(load_recipe("snapkv", 64)).contains("at_rest/snapkv")) << "never rests";
}

// Half of 64 tokens is less than vatp always keeps, half of 300 is not.
TEST(RecipeOps, PromptsThatAreTooShortAreLeftOut) {
  const std::unique_ptr<EngineModel> model = make_random_model("cpu", timed_config());
  const auto prompts_of = [&](std::vector<std::int32_t> lengths) {
    std::size_t prompts = 0;
    for (const RecipeCalls& c : time_recipe(*model, load_recipe("vatp"), {std::move(lengths), {1}, 1, 1}, std::atomic<bool>(false)))
      prompts += c.op == "compact" ? 1 : 0;
    return prompts;
  };
  EXPECT_EQ(prompts_of({300}), 1U);
  EXPECT_EQ(prompts_of({64, 300}), 1U);
  EXPECT_THROW(prompts_of({32, 64}), InputError);
}

TEST(RecipeOps, WhatDoesNotRunThereIsRefused) {
  const auto error_on = [](const char* backend, const char* name) {
    return error_of([&] { require_timed(backend, load_recipe(name), timed_config()); });
  };
  EXPECT_EQ(error_on("cpu", "kvpress_knorm"), "no error");
  EXPECT_THAT(error_on("cuda", "kvpress_knorm"), testing::HasSubstr("breaks ties as a library does on a CPU"));
  EXPECT_THAT(error_on("cuda", "kvzip"), testing::HasSubstr("needs the extra pass"));
  EXPECT_THAT(error_on("cpu", "finch"), testing::HasSubstr("does not run in simulations"));
}

TEST(RecipeOps, AStopEndsIt) { EXPECT_TRUE(timed(load_recipe("kivi2"), true).empty()); }

// `calibrate --kv-policy all`: a few recipes whose steps call every operation.

std::set<std::string> covered(const std::vector<std::string>& recipes) {
  std::set<std::string> all;
  for (const std::string& name : recipes) all.merge(operations_of(timed_recipe(load_recipe(name)), test::small_config(8)));
  return all;
}

// The operations that the engine calls in the recipes of tests/kernels/golden_ops.txt, each with one of these.
std::map<std::string, std::string> called_in_engine(bool has_kernel) {
  std::ifstream file(KVLAB_SOURCE_DIR "/tests/kernels/golden_ops.txt");
  std::map<std::string, std::string> all;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string recipe, op, calls, cpu, emulated;
    words >> recipe >> op >> calls >> cpu >> emulated;
    if (!has_kernel || emulated != "-") all.emplace(op, recipe);
  }
  return all;
}

// attend and at_rest are timed otherwise; the simulator prices prompts with sparse_prefill and packs no words.
const std::set<std::string> kApart{"attend", "at_rest", "fetch", "read_disk"};

TEST(CoveringRecipes, CallWhatTheEngineCalls) {
  for (const char* backend : {"cpu", "cuda"}) {
    const std::vector<std::string> recipes = covering_recipes(backend, test::small_config(8));
    const std::set<std::string> names = covered(recipes);
    EXPECT_LT(recipes.size(), 90U);
    for (const auto& [op, recipe] : called_in_engine(backend == std::string("cuda")))
      EXPECT_TRUE(names.contains(op) || kApart.contains(op)) << op << " of " << recipe << " on " << backend;
  }
}

TEST(CoveringRecipes, EachAddsAnOperation) {
  std::set<std::string> known;
  for (const std::string& name : covering_recipes("cpu", test::small_config(8))) {
    const std::size_t before = known.size();
    known.merge(covered({name}));
    EXPECT_GT(known.size(), before) << name;
  }
}

}  // namespace
}  // namespace kvlab
