#include "tests/held_bounds.h"

#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

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
  EXPECT_TRUE(!differ || 3 * smallest < 2 * largest) << "the shares are to differ: " << smallest << " and " << largest;
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

using Target = std::optional<std::int32_t>;

// A sequence of `prompt` tokens whose step ends at `end`; decode steps have one token, chunks ten.
SeqStep at(std::int32_t end, std::int32_t prompt) {
  const std::int32_t tokens = end > prompt ? 1 : std::min(10, end);
  return {0, end - tokens, tokens, prompt, -1};
}

Budget tokens(std::int32_t n) {
  Budget b;
  b.tokens = n;
  return b;
}

// Rows of one sequence from its first chunk to its last decode step, cut as the trigger says; how many tokens are held after each.
std::vector<std::int32_t> held_after(const Trigger& trigger, std::int32_t prompt, std::int32_t decode_steps, const Budget& budget) {
  std::vector<std::int32_t> held;
  std::int32_t n = 0;
  for (std::int32_t end = std::min(10, prompt); end <= prompt + decode_steps; end += end < prompt ? 10 : 1) {
    const SeqStep seq = at(end, prompt);
    n += seq.new_tokens;
    const Target target = trigger.target(seq, n, budget);
    EXPECT_EQ(target, trigger.target(seq, n, budget));
    if (target) {
      EXPECT_LE(*target, n);
      n = *target;
    }
    held.push_back(n);
  }
  return held;
}

TEST(Triggers, CutRowsWhenTheirTimeComes) {
  struct Case {
    std::string name, parameters;
    std::int32_t prompt, decode_steps, budget;
    Ints held;
  };
  const std::string scope = ", recent_tokens: 2, decode_tokens: 4, growth_steps: 3}";
  for (const Case& c : {Case{"every_step", "{from: prompt_end}", 30, 3, 8, {10, 20, 8, 8, 8, 8}},
                        {"every_step", "{from: decode_only}", 30, 3, 8, {10, 20, 30, 8, 8, 8}},
                        {"every_step", "{from: every_chunk}", 30, 3, 8, {8, 8, 8, 8, 8, 8}},
                        {"every_step", "{}", 10, 3, 12, {10, 11, 12, 12}},
                        {"every_n", "{steps: 3}", 10, 7, 8, {8, 9, 10, 8, 9, 10, 8, 9}},
                        {"when_full", "{}", 10, 6, 6, {3, 4, 5, 6, 3, 4, 5}},
                        {"when_full", "{drop_frac: 0}", 10, 2, 6, {6, 6, 6}},
                        {"per_chunk", "{keep_chunk: true}", 30, 2, 15, {10, 15, 15, 16, 17}},
                        {"scope", "{mode: slide" + scope, 10, 8, 6, {6, 7, 8, 9, 10, 10, 10, 10, 10}},
                        {"scope", "{mode: adaptive" + scope, 10, 8, 6, {6, 7, 8, 9, 9, 9, 10, 10, 10}},
                        {"scope", "{mode: discontinuous" + scope, 10, 8, 6, {6, 7, 8, 9, 10, 11, 10, 11, 12}},
                        {"page_full", "{page_tokens: 4}", 20, 6, 11, {10, 8, 9, 10, 11, 8, 9, 10}},
                        {"page_full", "{page_tokens: 4}", 3, 10, 8, {3, 4, 5, 6, 7, 8, 9, 10, 11, 8, 9}}})
    EXPECT_EQ(held_after(*make_part<TriggerRegistry>(c.name, c.parameters), c.prompt, c.decode_steps, tokens(c.budget)), c.held)
        << c.name << c.parameters;
  EXPECT_TRUE(make_part<TriggerRegistry>("every_step", "{from: every_chunk}")->inside_prefill());
  EXPECT_FALSE(make_part<TriggerRegistry>("every_step")->inside_prefill());
  EXPECT_EQ(make_part<TriggerRegistry>("every_n", "{steps: 3}")->slack_tokens(), 2);
}

// Layer 1 has half of the budget, the others one and a half. A sequence within the budget exceeds no share.
TEST(Held, IsComparedWithTheSharesOfItsRows) {
  const auto table = make_part<AllocatorRegistry>("table", "{unit: budget_frac, values: 0=1.5 1=0.5}");
  const auto uniform = make_part<AllocatorRegistry>("uniform"), data = make_part<AllocatorRegistry>("global");
  const ModelShape model{2, 4, 2, 16, 64};
  const auto exceeds = [&](const Allocator& allocator, std::int32_t layer, std::vector<std::int32_t> len, std::int32_t n) {
    return Held(allocator, model, layer, len, n).exceeds(40);
  };
  EXPECT_FALSE(exceeds(*table, 1, {20, 20}, 50));
  EXPECT_TRUE(exceeds(*table, 1, {20, 21}, 50));
  EXPECT_FALSE(exceeds(*table, 1, {40, 40}, 40));
  EXPECT_FALSE(exceeds(*table, 0, {60, 60}, 90));
  EXPECT_TRUE(exceeds(*table, 0, {61, 60}, 90));
  for (const Allocator* equal : {uniform.get(), data.get()}) {
    EXPECT_FALSE(exceeds(*equal, 1, {40, 40}, 90));
    EXPECT_TRUE(exceeds(*equal, 1, {20, 41}, 90));
  }
  EXPECT_EQ(Held(*table, model, 0, std::vector<std::int32_t>{7, 9}, 20).tokens(), 9);
}

TEST(EveryN, WithoutBudgetOffersAllThatIsHeld) {
  const auto trigger = make_part<TriggerRegistry>("every_n", "{steps: 2, budgeted: false}");
  EXPECT_FALSE(trigger->needs_budget());
  EXPECT_EQ(trigger->target(at(12, 10), 7, Budget{}), Target(7));
  EXPECT_EQ(trigger->target(at(11, 10), 7, Budget{}), std::nullopt);
  EXPECT_EQ(trigger->target(at(10, 10), 10, Budget{}), Target(10));
}

TEST(PrefillEnd, WithoutBudgetOffersThePromptOnce) {
  auto trigger = make_part<TriggerRegistry>("prefill_end", "{budgeted: false}");
  EXPECT_FALSE(trigger->needs_budget());
  EXPECT_EQ(trigger->target(at(20, 30), 20, {}), Target());
  EXPECT_EQ(trigger->target(at(30, 30), 30, {}), Target(30));
  EXPECT_EQ(trigger->target(at(31, 30), 31, {}), Target());
  for (const std::int32_t end : {30, 31}) EXPECT_FALSE(trigger->bound(at(end, 30), {})) << end;
}

TEST(EveryN, LooksAtATokenOnce) {
  const auto before = [](const std::string& more, std::int32_t end, std::int32_t prompt) {
    const auto trigger = make_part<TriggerRegistry>("every_n", "{budgeted: false, window_tokens: 4, " + more + "}");
    EXPECT_EQ(trigger->protects(at(end, prompt)).recent, 4);
    return trigger->protects(at(end, prompt)).before;
  };
  EXPECT_EQ(before("steps: 1", 30, 30), 0);
  EXPECT_EQ(before("steps: 1", 31, 30), 26);
  EXPECT_EQ(before("steps: 1", 3, 2), 0);
  EXPECT_EQ(before("steps: 5", 35, 30), 26);
  EXPECT_EQ(before("steps: 5", 40, 30), 31);
  EXPECT_EQ(before("steps: 5, from: decode_only", 35, 30), 0);
  EXPECT_EQ(before("steps: 5, from: decode_only", 40, 30), 31);
  EXPECT_EQ(before("steps: 5, from: every_chunk", 20, 30), 6);
  EXPECT_EQ(before("steps: 5, from: every_chunk", 35, 30), 26);
  EXPECT_EQ(make_part<TriggerRegistry>("every_n", "{budgeted: false}")->protects(at(31, 30)).before, 0);
  EXPECT_THROW(make_part<TriggerRegistry>("every_n", "{window_tokens: 4}"), std::runtime_error);
}

TEST(PerChunk, ProtectsItsChunkOrABlock) {
  for (const auto& [parameters, recent] : {std::pair{"{keep_chunk: true}", 10}, {"{keep_chunk: true, block_tokens: 7}", 7}, {"{}", 0}})
    EXPECT_EQ(make_part<TriggerRegistry>("per_chunk", parameters)->protects(at(20, 30)).recent, recent) << parameters;
}

// Sinks 2, partitions of 4, half of each kept: [2..6) is cut when [6..10) is full.
TEST(Lagged, CutsAPartitionWhenTheNextIsFull) {
  const auto trigger = make_part<TriggerRegistry>("lagged", "{sinks_tokens: 2, lag_tokens: 4}");
  Budget half;
  half.frac = 0.5;
  EXPECT_EQ(held_after(*trigger, 9, 6, half).back(), 15 - 2 * 2);
  const auto held = held_after(*trigger, 10, 9, half);
  EXPECT_EQ(held, (Ints{8, 9, 10, 11, 10, 11, 12, 13, 12, 13}));
  EXPECT_EQ(std::tuple(trigger->protects(at(14, 10)).recent, trigger->protects(at(5, 10)).recent), std::tuple(14 - 2 - 2 * 4, 3));
  EXPECT_EQ(trigger->target(at(1, 1), 1, half), std::nullopt);
}

// Sinks 2, partitions of 4. In a prompt of 19 tokens three are cut and 7 are sinks and tail: 15 - 7 leaves 2 of each partition.
TEST(Lagged, HoldsABudgetInTokensWhenThePromptIsComplete) {
  const auto trigger = make_part<TriggerRegistry>("lagged", "{sinks_tokens: 2, lag_tokens: 4}");
  const auto held = [&](std::int32_t prompt, std::int32_t budget, std::int32_t steps = 0) {
    std::int32_t n = prompt;
    for (std::int32_t end = prompt; end <= prompt + steps; ++end, ++n) n = trigger->target(at(end, prompt), n, tokens(budget)).value_or(n);
    return n - 1;
  };
  EXPECT_EQ(held(19, 15), 7 + 3 * 2);
  EXPECT_EQ(held(19, 16), 7 + 3 * 3);
  EXPECT_EQ(held(19, 18), 7 + 3 * 3);
  EXPECT_EQ(held(19, 19), 19);
  EXPECT_EQ(held(19, 10), 7 + 3 * 1);
  EXPECT_EQ(held(19, 7), 7);
  EXPECT_EQ(held(19, 3), 7) << "as little as possible";
  EXPECT_EQ(held(9, 8), 9) << "nothing to cut yet";
  EXPECT_EQ(held(19, 15, 3), 2 + 4 * 2 + 4) << "one partition more, which keeps as much";
  for (std::int32_t prompt = 10; prompt < 60; ++prompt)
    for (std::int32_t budget = 9; budget < 70; ++budget) {
      const std::int32_t n = held(prompt, budget), partitions = (prompt - 2) / 4 - 1;
      EXPECT_LE(n, budget) << prompt;
      EXPECT_GT(n, std::min(budget, prompt) - partitions) << prompt;
    }
}

TEST(Scope, ProtectsThePromptInDecode) {
  const auto trigger = make_part<TriggerRegistry>("scope", "{recent_tokens: 2, decode_tokens: 4}");
  EXPECT_TRUE(trigger->protects(at(12, 10)).prompt);
  EXPECT_FALSE(trigger->protects(at(10, 10)).prompt);
  EXPECT_THROW(make_part<TriggerRegistry>("scope", "{recent_tokens: 5, decode_tokens: 4}"), std::runtime_error);
}

TEST(PageFull, ProtectsTheNewestPage) {
  EXPECT_EQ(make_part<TriggerRegistry>("page_full", "{page_tokens: 4}")->protects(at(24, 20)).recent, 4);
}

}  // namespace
}  // namespace kvlab::test
