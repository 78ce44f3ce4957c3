#include <gtest/gtest.h>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

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

using Lengths = std::vector<std::int32_t>;

TEST(Triggers, CutRowsWhenTheirTimeComes) {
  struct Case {
    std::string name, parameters;
    std::int32_t prompt, decode_steps, budget;
    Lengths held;
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
  EXPECT_EQ(held, (Lengths{8, 9, 10, 11, 10, 11, 12, 13, 12, 13}));
  EXPECT_EQ(trigger->protects(at(14, 10)).recent, 14 - 2 - 2 * 4);
  EXPECT_EQ(trigger->protects(at(5, 10)).recent, 3);
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
