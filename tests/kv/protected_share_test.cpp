// Scorers that protect a share of the budget, where rows have unequal ones.
#include <gtest/gtest.h>

#include "sim/kv_cost/count_sources.h"
#include "tests/kv/host_fixture.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kLayers = 6, kHeads = 2, kPrompt = 400;

const AttentionTrace& six_layers() {
  static const AttentionTrace trace = [] { return sample({.layers = kLayers, .prompt = kPrompt, .decode = 40, .chunk = 0}); }();
  return trace;
}

using Rows = std::vector<std::vector<std::int32_t>>;  // [layer * kHeads + head] positions that stay

// The rows that the recipe holds after the prompt and `decoded` tokens. The first decode step shows what the prompt left, and one token
// more.
Rows rows_after(const std::string& text, std::int32_t decoded) {
  AttentionTrace trace = six_layers();
  trace.num_tokens = kPrompt + std::max(1, decoded);
  Rows rows = replay(trace, full_attention(trace), recipe_of(text)).kept;
  for (auto& row : rows)
    if (decoded == 0) std::erase(row, kPrompt);
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
  expect_halves(rows_after(d2o + "allocator: {d2o_layers: {temperature: 1}}}", 0), kPrompt, 4);
}

TEST(ProtectedShare, IsHalfOfTheSharesOfPyramidAndTable) {
  for (const std::string allocator : {"{pyramid: {window_tokens: 8}}", "{table: {unit: budget_frac, values: 0=1.5 1=0.5 3.1=0.3}}",
                                      "{ada: {safeguard_frac: 0.5}}", "global"}) {
    for (const std::int32_t decoded : {0, 40}) {
      SCOPED_TRACE(allocator + ", decoded " + std::to_string(decoded));
      if (decoded > 0 && allocator == "global") continue;  // at the prompt's end only
      const std::string trigger = decoded == 0 ? "prefill_end" : "every_step";
      const std::string recipe = "{recipe: h2o, budget_tokens: 80, allocator: " + allocator + ", trigger: " + trigger + "}";
      expect_halves(rows_after(recipe, decoded), kPrompt + decoded, 0, allocator[1] != 'a');
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
      EXPECT_EQ(newest_in(row, kPrompt, size - sinks), size - sinks) << scorer;
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

}  // namespace
}  // namespace kvlab::test
