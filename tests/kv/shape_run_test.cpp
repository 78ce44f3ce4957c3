#include "sim/kv_cost/shape_run.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/recipes_in.h"

namespace kvlab {
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
  EXPECT_EQ(mixed.calls.size(), one.calls.size() + other.calls.size());
  EXPECT_EQ(mixed.attended_tokens, one.attended_tokens);
  EXPECT_EQ(mixed.after.gpu, one.after.gpu + other.after.gpu);
  EXPECT_EQ(mixed.held[0], 3001);
  EXPECT_EQ(mixed.held[4], 700);
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

}  // namespace
}  // namespace kvlab
