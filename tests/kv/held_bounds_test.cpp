#include "tests/held_bounds.h"

#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// Compares the memory that serving counts for every recipe with the bound that the recipe declares.

constexpr ModelShape kBoundModel{4, 4, 2, 32, 64};
constexpr std::int32_t kBoundChunk = 1024, kBoundDecoded = 24, kBoundBlock = 16;

std::int64_t tokens_in_rows(const RecipeFootprint& footprint, const SeqState& seq) {
  const std::vector<std::int32_t> held = footprint.shape_of(seq.taking(1)).held;
  const std::int64_t rows = kBoundModel.num_layers * kBoundModel.kv_heads;
  return held.size() == 1 ? rows * held.front() : std::accumulate(held.begin(), held.end(), std::int64_t{0});
}

// Prompt and decode steps of one sequence.
void expect_held_bounds(RecipeFootprint& footprint, const KvPolicy& policy, std::int32_t prompt) {
  SeqState seq{0, prompt, 0, 0, false, false};
  const std::int32_t chunk = policy.prunes() ? prompt : kBoundChunk;
  while (seq.seen_tokens < prompt + kBoundDecoded) {
    const std::int32_t tokens = seq.seen_tokens < prompt ? std::min(chunk, prompt - seq.seen_tokens) : 1;
    const FootprintStep done = footprint.step(seq.taking(tokens));
    const std::int64_t most = policy.most_tokens({0, seq.seen_tokens, tokens, prompt, policy.needs().assumed_question(prompt)});
    seq = done.after(seq.taking(tokens));
    EXPECT_LE(tokens_in_rows(footprint, seq), most) << "after " << seq.seen_tokens << " tokens";
    if (testing::Test::HasFailure()) return;
  }
}

class HeldBounds : public testing::TestWithParam<std::string> {};

TEST_P(HeldBounds, ServingHoldsNoMoreThanTheRecipeSays) {
  if (left_out_of_bounds(GetParam())) GTEST_SKIP() << kLeftOut;
  for (const auto& [budget, recipe] : bound_cases(GetParam())) {
    std::unique_ptr<RecipeFootprint> footprint;
    try {
      footprint = std::make_unique<RecipeFootprint>(recipe, kBoundModel, kBoundBlock);
    } catch (const InputError&) {
      continue;  // the budget is below what always stays, or only a recording has what it observes
    }
    const KvPolicy policy(recipe, kBoundModel);
    for (const std::int32_t prompt : kBoundPrompts) {
      SCOPED_TRACE(GetParam() + " " + budget + ", prompt of " + std::to_string(prompt));
      expect_held_bounds(*footprint, policy, prompt);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, HeldBounds, testing::ValuesIn(recipes_in({"cost"})), [](const auto& info) { return info.param; });

// Budgets that differ between layers or heads, kept in decode row by row.

constexpr ModelShape kSharesModel{4, 8, 2, 64, 128};
constexpr std::int32_t kSharesBudget = 130;

bool calls(const ShapeRun::Result& step, std::int32_t layer, std::string_view op) {
  const auto at = [&](std::int32_t l) { return step.calls.begin() + static_cast<std::ptrdiff_t>(nth(step.first_call, l)); };
  return std::any_of(at(layer), at(layer + 1), [&](const OpCall& c) { return c.op == op; });
}

class UnequalShares : public testing::TestWithParam<std::string> {
 protected:
  UnequalShares()
      : recipe_(unequal_shares_of(GetParam().substr(7))),
        allocator_(recipe_.make_allocator()),
        slack_(recipe_.make_trigger()->slack_tokens()) {}
  [[nodiscard]] std::int32_t share(std::size_t row, std::int32_t n) const {
    const auto layer = static_cast<std::int32_t>(row) / kSharesModel.kv_heads;
    return allocator_->expected(kSharesModel, layer, static_cast<std::int32_t>(row) % kSharesModel.kv_heads, kSharesBudget, n);
  }

  Recipe recipe_;
  std::unique_ptr<Allocator> allocator_;
  std::int32_t slack_;
};

// No row is longer than its share while tokens are decoded, and no layer is scored whose rows are not.
TEST_P(UnequalShares, AreKeptByEveryRowInDecodeAndSumToTheBudget) {
  if (GetParam() == "shares_ada") return;          // its heads compete
  const bool sums = GetParam() != "shares_heads";  // retrieval heads are on top of it
  for (const std::int32_t prompt : {20, 129, 140, 300}) {
    ShapeRun run(recipe_, kSharesModel);
    std::vector<std::int32_t> held;
    for (std::int32_t n = prompt; n < prompt + 300; ++n) {
      SCOPED_TRACE("prompt " + std::to_string(prompt) + ", tokens " + std::to_string(n));
      const ShapeRun::Seq seq{held.empty() ? 0 : n - 1, held.empty() ? n : 1, prompt, held, {}};
      const ShapeRun::Result step = run.step(std::span(&seq, 1));
      for (std::size_t r = 0; r < step.held.size(); ++r) {
        std::int32_t most = n <= kSharesBudget + slack_ ? n : 0;  // a sequence within the budget is whole
        for (std::int32_t cut = std::max(n - slack_, kSharesBudget + 1); cut <= n; ++cut) most = std::max(most, share(r, cut));
        ASSERT_LE(step.held[r], most + slack_) << "row " << r;
      }
      const double mean = std::accumulate(step.held.begin(), step.held.end(), 0.0) / static_cast<double>(step.held.size());
      ASSERT_LE(sums ? mean : 0, kSharesBudget + slack_);
      ASSERT_GT(sums && recipe_.trigger == "every_step" && prompt == 300 ? mean : kSharesBudget, kSharesBudget - 2);
      for (std::int32_t l = 0; l < kSharesModel.num_layers && !held.empty(); ++l) {
        bool over = false;
        for (std::int32_t h = 0; h < kSharesModel.kv_heads; ++h) {
          const auto r = static_cast<std::size_t>(l * kSharesModel.kv_heads + h);
          over |= held[r] + 1 > share(r, n);
        }
        if (!over) {
          ASSERT_FALSE(calls(step, l, "top_k")) << "layer " << l;
          ASSERT_FALSE(calls(step, l, "token_scores")) << "layer " << l;
        }
      }
      held = step.held;
    }
  }
}

TEST_P(UnequalShares, CostTheSameInReplayAndOnShapes) {
  const AttentionTrace trace = sample({.layers = 4, .prompt = 210, .decode = 90});
  const ReplayResult end = expect_cost_is_replay(trace, full_attention(trace), recipe_);
  for (std::size_t r = 0; r < end.kept.size(); r += 2)
    EXPECT_LE(end.kept[r].size() + end.kept[r + 1].size(), static_cast<std::size_t>(share(r, 300) + share(r + 1, 300) + 2 * slack_))
        << "row " << r;
}

INSTANTIATE_TEST_SUITE_P(All, UnequalShares, testing::ValuesIn(unequal_shares_names()), [](const auto& info) { return info.param; });

// Scorers that protect a share of the budget, where rows have unequal ones.

constexpr std::int32_t kSharedPrompt = 400;

const AttentionTrace& six_layers() {
  static const AttentionTrace trace = [] { return sample({.layers = 6, .prompt = kSharedPrompt, .decode = 40, .chunk = 0}); }();
  return trace;
}

using Rows = std::vector<std::vector<std::int32_t>>;  // [layer * 2 + head] positions that stay

// The rows that the recipe holds after the prompt and `decoded` tokens. The first decode step shows what the prompt left, and one token
// more.
Rows rows_after(const std::string& text, std::int32_t decoded) {
  AttentionTrace trace = six_layers();
  trace.num_tokens = kSharedPrompt + std::max(1, decoded);
  Rows rows = replay(trace, full_attention(trace), recipe_of(text)).kept;
  for (auto& row : rows)
    if (decoded == 0) std::erase(row, kSharedPrompt);
  return rows;
}

// How many of the `count` positions before `end` are in the row.
std::int32_t newest_in(const std::vector<std::int32_t>& row, std::int32_t end, std::int32_t count) {
  return static_cast<std::int32_t>(std::count_if(row.begin(), row.end(), [&](std::int32_t p) { return p >= end - count && p < end; }));
}

// Cut rows hold the sinks, the newest half of what they keep, and in the other half older tokens as well.
void expect_halves(const Rows& rows, std::int32_t end, std::int32_t sinks, bool differ = true) {
  std::size_t smallest = 1 << 20, largest = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE("row " + std::to_string(r) + " of " + std::to_string(rows[r].size()) + " tokens");
    if (static_cast<std::int32_t>(rows[r].size()) == end) continue;
    const auto half = static_cast<std::int32_t>(rows[r].size()) / 2;
    EXPECT_EQ(newest_in(rows[r], end, half), half);
    EXPECT_EQ(newest_in(rows[r], sinks, sinks), sinks);
    EXPECT_LT(newest_in(rows[r], end, 2 * half), 2 * half) << "heavy hitters are older";
    smallest = std::min(smallest, rows[r].size()), largest = std::max(largest, rows[r].size());
  }
  if (differ) {
    EXPECT_LT(3 * smallest, 2 * largest) << "the shares are to differ";
  }
}

// Shares of layers differ widely at this temperature.
TEST(ProtectedShare, IsHalfOfWhatALayerOfD2oKeeps) {
  const std::string d2o = "{recipe: d2o, budget_tokens: 100, trigger: prefill_end, disposal: drop, ";
  expect_halves(rows_after(d2o + "allocator: {d2o_layers: {temperature: 1}}}", 0), kSharedPrompt, 4);
}

TEST(ProtectedShare, IsHalfOfTheSharesOfPyramidAndTable) {
  for (const std::string allocator : {"{pyramid: {window_tokens: 8}}", "{table: {unit: budget_frac, values: 0=1.5 1=0.5 3.1=0.3}}",
                                      "{ada: {safeguard_frac: 0.5}}", "global"}) {
    for (const std::int32_t decoded : {0, 40}) {
      SCOPED_TRACE(allocator + ", decoded " + std::to_string(decoded));
      if (decoded > 0 && allocator == "global") continue;  // at the prompt's end only
      const std::string trigger = decoded == 0 ? "prefill_end" : "every_step";
      const std::string recipe = "{recipe: h2o, budget_tokens: 80, allocator: " + allocator + ", trigger: " + trigger + "}";
      expect_halves(rows_after(recipe, decoded), kSharedPrompt + decoded, 0, allocator[1] != 'a');
    }
  }
}

// Tokens protected by the mean budget do not count in the layers' variances, whatever a layer then protects.
TEST(ProtectedShare, LeavesTheSharesOfD2oAsTheyAre) {
  const auto counts = [](const std::string& scorer) {
    RecordedCounts recorded;
    const Recipe recipe = recipe_of("{recipe: d2o, budget_tokens: 100, disposal: drop, scorer: {accumulated_attention: {" + scorer + "}}}");
    replay(six_layers(), full_attention(six_layers()), recipe, {.counts = &recorded});
    return recorded.entries();
  };
  const auto share = counts("sinks_tokens: 4, recent_frac: 0.5"), fixed = counts("sinks_tokens: 4, recent_frac: 0, recent_tokens: 50");
  EXPECT_FALSE(share.empty());
  EXPECT_EQ(share, fixed);
}

// A layer may keep fewer tokens than are protected: the first ones stay, then the newest.
TEST(ProtectedShare, FirstTokensThenTheNewestStayWhereThereIsNoRoomForAll) {
  for (const std::string scorer : {"window_attention: {window_tokens: 60}", "accumulated_attention: {sinks_tokens: 8, recent_tokens: 50}",
                                   "accumulated_attention: {sinks_tokens: 8, recent_tokens: 50, recent_frac: 0}"}) {
    const std::string allocator = std::string("{d2o_layers: {least_frac: 0.02, temperature: ") + (scorer[0] == 'w' ? "1e-5}}" : "0.1}}");
    const std::string d2o = "{recipe: d2o, budget_tokens: 120, trigger: prefill_end, disposal: drop, ";
    std::int32_t small = 0;
    for (const auto& row : rows_after(d2o + "scorer: {" + scorer + "}, allocator: " + allocator + "}", 0)) {
      const auto size = static_cast<std::int32_t>(row.size()), sinks = scorer[0] == 'w' ? 0 : std::min(8, size);
      if (size >= 58) continue;
      ++small;
      EXPECT_EQ(newest_in(row, sinks, sinks), sinks) << scorer;
      EXPECT_EQ(newest_in(row, kSharedPrompt, size - sinks), size - sinks) << scorer;
    }
    EXPECT_GT(small, 0) << scorer;
  }
}

TEST(ProtectedShare, CostsTheSameInReplayAndOnShapes) {
  for (const std::string allocator : {"{d2o_layers: {temperature: 0.1}}", "{ada: {layers: {pyramid: {window_tokens: 8}}}}", "cake"})
    for (const std::string scorer :
         {"{accumulated_attention: {sinks_tokens: 4, recent_frac: 0.5}}", "{window_attention: {window_tokens: 60}}"}) {
      SCOPED_TRACE(allocator + " " + scorer);
      const std::string trigger = allocator == "{d2o_layers: {temperature: 0.1}}" ? "every_step" : "prefill_end";
      const std::string text =
          "{recipe: d2o, budget_tokens: 100, scorer: " + scorer + ", allocator: " + allocator + ", trigger: " + trigger + "}";
      expect_cost_is_replay(six_layers(), full_attention(six_layers()), recipe_of(text));
    }
}

TEST(Counts, ScriptGivesOutWhatWasRecordedAndNamesWhatDoesNotFit) {
  RecordedCounts recorded;
  recorded.begin_step(3);
  std::vector<std::int32_t> counts{5, 7};
  recorded.fill("kept", 2, counts);
  EXPECT_EQ(recorded.entries(), (std::vector<RecordedCounts::Entry>{{"kept", 2, 3, {5, 7}}}));

  ScriptedCounts script(recorded.entries());
  script.begin_step(4);
  std::vector<std::int32_t> three(3, 9), two(2, 9);
  EXPECT_EQ(
      error_of([&] { script.fill("kept", 2, three); }),
      "scripted counts: the run asks for 3 counts of 'kept' in layer 2, step 4, but entry 0 has 2 counts of 'kept' in layer 2, step 3");
  EXPECT_NE(error_of([&] { script.fill("kept", 1, two); }), "no error");
  EXPECT_NE(error_of([&] { script.fill("reused", 2, two); }), "no error");
  script.fill("kept", 2, two);
  EXPECT_EQ(two, counts);
  EXPECT_TRUE(script.used_up());
  EXPECT_EQ(error_of([&] { script.fill("kept", 2, two); }),
            "scripted counts: the run asks for 2 counts of 'kept' in layer 2, step 4, but the 1 recorded entries are used up");
}

}  // namespace
}  // namespace kvlab::test
