#include "sim/kv_cost/step_ops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/random.h"
#include "sim/kv_cost/shape_run.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kRunModel{2, 8, 2, 64, 128};
constexpr std::int64_t kTokenBytes = 2 * 2 * 2 * 64 * 2;  // K and V, 2 layers, 2 KV heads, 64 channels, fp16

TEST(ShapeRun, PrefillEndCutsAndCountsBoth) {
  ShapeRun run(load_recipe("snapkv", 128), kRunModel);
  const ShapeRun::Seq seq{0, 1000, 1000, {}, {}};
  const ShapeRun::Result r = run.step(std::span(&seq, 1));
  EXPECT_EQ(r.held, std::vector<std::int32_t>(4, 128));
  EXPECT_EQ(r.before.gpu, 0);
  EXPECT_EQ(r.after.gpu, 128 * (kTokenBytes + 4 * 4));              // and positions
  EXPECT_EQ(r.peak.gpu, (1000 + 128) / 2 * (kTokenBytes + 4 * 4));  // one layer cut, the other not yet
  EXPECT_EQ(r.attended_tokens, 0);
  for (const SummedCall& s : summed(r.calls)) EXPECT_EQ(s.launches, 2) << s.call.op;
}

class ShapeRunOf : public testing::TestWithParam<std::string> {};

std::int64_t bytes_of(const std::vector<OpCall>& calls) {
  std::int64_t bytes = 0;
  for (const OpCall& c : calls) bytes += c.bytes;
  return bytes;
}

// A decode step at some length needs no history, and is the one that stepping there gives. Recycled attention drops one ranked token per
// step since its last full step, which lengths do not tell.
TEST_P(ShapeRunOf, FreshStateEqualsTheSteppedOne) {
  const Recipe cut = with_budget(GetParam(), 160);
  ShapeRun stepped(cut, kRunModel), fresh(cut, kRunModel);
  ShapeRun::Seq seq{0, 300, 300, {}, {}};
  if (!stepped.policy().needs().pass.empty()) seq.inputs.pass = {{32, 0, 0, 300}};
  for (std::int32_t t = 0; t < 40; ++t) {
    const ShapeRun::Result a = stepped.step(std::span(&seq, 1));
    fresh.forget();
    const ShapeRun::Result b = fresh.step(std::span(&seq, 1));
    if (GetParam() == "recycled_attention") {
      EXPECT_NEAR(static_cast<double>(bytes_of(a.calls)), static_cast<double>(bytes_of(b.calls)),
                  0.02 * static_cast<double>(bytes_of(b.calls)))
          << " step " << t;
    } else {
      EXPECT_TRUE(a.calls == b.calls) << " step " << t;
    }
    EXPECT_EQ(a.held, b.held) << " step " << t;
    EXPECT_EQ(a.after, b.after) << " step " << t;
    seq.seen_tokens += seq.new_tokens, seq.new_tokens = 1, seq.held = a.held;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ShapeRunOf, testing::ValuesIn(recipes_in({"cost"})), [](const auto& info) { return info.param; });

TEST(ShapeRun, MixedBatchIsBothGroups) {
  ShapeRun run(load_recipe("quest"), kRunModel);
  const ShapeRun::Seq decode{3000, 1, 2000, {3000}, {}}, prompt{0, 700, 700, {}, {}};
  const ShapeRun::Seq both[] = {decode, prompt};
  const ShapeRun::Result mixed = run.step(both);
  run.forget();
  const ShapeRun::Result one = run.step(std::span(both, 1));
  run.forget();
  const ShapeRun::Result other = run.step(std::span(both + 1, 1));
  EXPECT_EQ(std::tuple(mixed.calls.size(), mixed.attended_tokens), std::tuple(one.calls.size() + other.calls.size(), one.attended_tokens));
  EXPECT_EQ(std::tuple(mixed.after.gpu, mixed.held[0], mixed.held[4]), std::tuple(one.after.gpu + other.after.gpu, 3001, 700));
}

TEST(ShapeRun, RefusesRecipesThatDoNotClaimTheHost) {
  Recipe recipe = load_recipe("full");
  recipe.hosts = {"engine"};
  EXPECT_THROW(ShapeRun(recipe, kRunModel), InputError);
}

TEST(ShapeRun, SumsCallsByOperation) {
  const std::vector<OpCall> calls{{"a", 1, 2, 3, 4, 5}, {"b", 1, 1, 1, 1, 1}, {"a", 10, 20, 30, 40, 50}};
  const std::vector<SummedCall> expected{{{"a", 11, 22, 33, 44, 55}, 2}, {{"b", 1, 1, 1, 1, 1}, 1}};
  EXPECT_EQ(summed(calls), expected);
}

constexpr ModelShape kStepModel{4, 8, 2, 64, 128};
constexpr std::int32_t kStepBudget = 130;  // above what any recipe always keeps

// States of sequences after a prompt and some decode steps, by their lengths alone.
std::vector<ShapeRun::Seq> states(ShapeRun& run, std::uint64_t draw, std::size_t count) {
  std::vector<ShapeRun::Seq> batch;
  for (std::size_t s = 0; s < count; ++s) {
    const auto pick = [&](std::uint64_t what, std::uint64_t n) {
      return static_cast<std::int32_t>(Draw{5, Purpose::kTest, draw, s, what}.below(n));
    };
    ShapeRun::Seq seq{0, 1 + pick(0, 300), 0, {}, {}};
    seq.prompt_tokens = seq.new_tokens;
    if (!run.policy().needs().pass.empty()) seq.inputs.pass = {{8, 0, 0, seq.prompt_tokens}};
    const std::int32_t decoded = pick(1, 40);
    for (std::int32_t t = 0; t <= decoded; ++t) {
      seq.held = run.step(std::span(&seq, 1)).held;
      seq.seen_tokens += seq.new_tokens;
      seq.new_tokens = 1;
      seq.inputs = {};
    }
    batch.push_back(seq);
  }
  return batch;
}

std::vector<std::string> text(const LayerCalls& calls) {
  std::vector<std::string> lines;
  for (std::int32_t l = 0; l < kStepModel.num_layers; ++l)
    for (const OpCall& c : calls.of_layer(l))
      lines.push_back(fmt::format("{} {} {} {} {} {} {}", l, c.op, c.rows, c.tokens, c.outputs, c.bytes, c.flops));
  return lines;
}

LayerCalls run_parts(ShapeRun& run, const std::vector<ShapeRun::Seq>& batch) {
  run.forget();
  const ShapeRun::Result result = run.step(batch);
  LayerCalls calls;
  for (std::int32_t l = 0; l < kStepModel.num_layers; ++l) {
    const auto at = [&](std::int32_t i) {
      return result.calls.begin() + static_cast<std::ptrdiff_t>(result.first_call[static_cast<std::size_t>(i)]);
    };
    calls.class_of_layer.push_back(l);
    calls.calls.emplace_back(at(l), at(l + 1));
    if (run.policy().recipe().selector != "all") add_fetches(result, static_cast<std::size_t>(l), calls.calls.back());
  }
  return calls;
}

class StepOpsOf : public testing::TestWithParam<std::string> {};

TEST_P(StepOpsOf, BatchIsTheExactSum) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = with_budget(GetParam(), kStepBudget);
  ShapeRun run(recipe, kStepModel);
  StepOps ops(recipe, kStepModel);
  for (std::uint64_t draw = 0; draw < (short_run() ? 15 : 60); ++draw) {
    const std::vector<ShapeRun::Seq> batch = states(run, draw, 1 + draw % 6);
    ASSERT_EQ(text(ops.decode(batch)), text(run_parts(run, batch))) << "batch " << draw;
  }
}

// The sequence in up to `most` steps, as long as rows that lost tokens change by equal numbers in each and no whole row is cut.
StepOps::Walk walk_on(ShapeRun& run, const ShapeRun::Seq& from, std::size_t most) {
  StepOps::Walk walk{from};
  run.forget();
  ShapeRun::Seq seq = from;
  for (std::size_t i = 1; i < most; ++i) {
    seq.held = run.step(std::span(&seq, 1)).held;
    ++seq.seen_tokens;
    std::optional<std::int32_t> grown;
    for (std::size_t row = 0; row < seq.held.size(); ++row) {
      const bool was_whole = from.held[row] == from.seen_tokens;
      const std::int32_t by = seq.held[row] - from.held[row];
      if (was_whole && seq.held[row] != seq.seen_tokens) return walk;
      if (was_whole) continue;
      if (grown && *grown != by) return walk;
      grown = by;
    }
    walk.grown.push_back(grown.value_or(static_cast<std::int32_t>(i)));
  }
  return walk;
}

ShapeRun::Seq before_step(const StepOps::Walk& walk, std::size_t step) {
  ShapeRun::Seq seq = walk.seq;
  seq.seen_tokens += static_cast<std::int32_t>(step);
  for (std::int32_t& h : seq.held) h += h == walk.seq.seen_tokens ? static_cast<std::int32_t>(step) : walk.grown[step];
  return seq;
}

// Many steps at once are those of the parts, over pages, blocks of codes and cuts, and so are the same steps one by one. Left out are
// formats in which one sequence may encode keys alone and another one values alone: alone both make calls of the same names, together twice
// as many, which are found as one.
TEST_P(StepOpsOf, StepsAheadAreThoseOfTheParts) {
  if (GetParam().find("kivi") != std::string::npos) GTEST_SKIP() << "calls for keys and for values have the same names";
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = with_budget(GetParam(), kStepBudget);
  ShapeRun run(recipe, kStepModel);
  StepOps ops(recipe, kStepModel);
  for (std::uint64_t draw = 100; draw < (short_run() ? 102 : 106); ++draw) {
    std::vector<StepOps::Walk> walks;
    std::size_t steps = 20;
    for (const ShapeRun::Seq& seq : states(run, draw, 1 + draw % 3)) {
      walks.push_back(walk_on(run, seq, steps));
      steps = std::min(steps, walks.back().grown.size());
    }
    const std::vector<LayerCalls> calls = ops.decode(walks, steps);
    ASSERT_EQ(calls.size(), steps);
    for (std::size_t i = 0; i < steps; ++i) {
      std::vector<ShapeRun::Seq> batch;
      for (const StepOps::Walk& walk : walks) batch.push_back(before_step(walk, i));
      const std::vector<std::string> of_parts = text(run_parts(run, batch));
      ASSERT_EQ(text(calls[i]), of_parts) << "batch " << draw << ", step " << i;
      ASSERT_EQ(text(ops.decode(batch)), of_parts) << "batch " << draw << ", step " << i << " again, after those ahead";
    }
    ASSERT_EQ(ops.decode(walks, steps), calls) << "batch " << draw << ", on known lines";
  }
}

// Steps that keep everything are on a few lines: the parts run a few times per block of lengths, not once per length.
TEST(StepOps, LinesSpareRuns) {
  StepOps ops(load_recipe("full"), kStepModel);
  const std::int64_t probes = ops.runs();
  for (std::int32_t n = 2048; n < 2048 + 160 * 16; ++n) {
    const ShapeRun::Seq seq{n, 1, 1024, {n}, {}};
    const LayerCalls calls = ops.decode(std::span(&seq, 1));
    ASSERT_EQ(calls.calls.size(), 1U);
    EXPECT_EQ(calls.calls[0].at(0).tokens, 2 * (n + 1));
  }
  EXPECT_LE(ops.runs() - probes, 160 * 3 + 16 * 13);
}

// Retrieval heads grow while streaming heads are cut: that, too, is a line, and another sequence of these lengths runs nothing.
TEST(StepOps, LinesOfWholeRowsSpareRuns) {
  const Recipe recipe = with_budget("duo", kStepBudget);
  StepOps ops(recipe, kStepModel);
  ShapeRun parts(recipe, kStepModel);
  const auto decode_all = [&](std::int32_t prompt) {
    std::vector<std::int32_t> held(std::size_t{4} * 2, 130);
    for (std::int32_t n = prompt; n < 2048; ++n) {
      for (std::size_t row = 1; row < held.size(); row += 2) held[row] = n;
      const std::vector batch{ShapeRun::Seq{n, 1, prompt, held, {}}};
      const LayerCalls calls = ops.decode(batch);
      if (n % 97 == 0) {
        ASSERT_EQ(text(calls), text(run_parts(parts, batch))) << "length " << n;
      }
    }
  };
  const std::int64_t probes = ops.runs();
  decode_all(1024);
  EXPECT_LE(ops.runs() - probes, 1024 / 16 * 3 + 16 * 13 + 3);
  const std::int64_t before = ops.runs();
  decode_all(1100);
  EXPECT_LE(ops.runs() - before, 1);  // the first token after the prompt
}

// Below the budget all layers attend to everything, above it two do: what was found below is not taken for what happens above.
TEST(StepOps, DenseLayersAreKnownBeforeTheyDiffer) {
  const Recipe recipe = with_budget("quest", kStepBudget);
  StepOps ops(recipe, kStepModel);
  ShapeRun parts(recipe, kStepModel);
  for (std::int32_t n = 3; n < 400; ++n) {
    const std::vector batch{ShapeRun::Seq{n, 1, 2, {n}, {}}};
    ASSERT_EQ(text(ops.decode(batch)), text(run_parts(parts, batch))) << "length " << n;
  }
}

TEST(StepOps, EmptyBatchCallsNothing) {
  const LayerCalls none = StepOps(load_recipe("full"), kStepModel).decode({});
  EXPECT_TRUE(none.of_layer(3).empty());
}

INSTANTIATE_TEST_SUITE_P(Recipes, StepOpsOf, testing::ValuesIn(recipes_in({"cost"})), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(UnequalShares, StepOpsOf, testing::ValuesIn(unequal_shares_names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
