#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "kvpress_cases.h"
#include "kvpress_run.h"

namespace kvlab {
namespace {

const std::vector<std::string> kRatios{"0.25", "0.5", "0.75"};

// What came of comparing sets, one per layer and KV head.
struct Outcome {
  std::int32_t sets = 0, identical = 0, tied = 0;
  std::int64_t tie_tokens = 0;
  double largest_gap = 0;  // relative distance of a tied token from the boundary
  void operator+=(const Outcome& o) {
    sets += o.sets, identical += o.identical, tied += o.tied, tie_tokens += o.tie_tokens;
    largest_gap = std::max(largest_gap, o.largest_gap);
  }
};

using OutcomeTable = std::map<std::pair<std::string, std::string>, Outcome>;  // press, ratio
OutcomeTable& table() {
  static OutcomeTable all;
  return all;
}

Recipe recipe_of(const PressCase& c, const std::string& ratio) {
  std::string overrides = c.overrides;
  if (const std::size_t at = overrides.find("RATIO"); at != std::string::npos) overrides.replace(at, 5, ratio);
  std::string text = "{recipe: kvpress_" + c.recipe;
  if (!c.channels) text += ", compression_ratio: " + ratio;
  if (!overrides.empty()) text += ", " + overrides;
  Params p = Params::from_text(text + "}", "kv_policy");
  return read_recipe(p);
}

std::vector<std::int32_t> chunk_ends(const PressCase& c, const Recipe& recipe, std::int32_t n) {
  if (c.block_tokens == 0) return {n};
  std::vector<std::int32_t> ends{recipe.budget.of(n)};
  while (ends.back() < n) ends.push_back(std::min(n, ends.back() + c.block_tokens));
  return ends;
}

// One press at one ratio on one prompt: our sets and the peer's.
struct Comparison {
  const PressCase& c;
  KeptSets ours;
  std::vector<std::vector<std::uint8_t>> peer;
  std::vector<PeerResults::Edge> edges, first_edges;
  std::int32_t kv_heads = 2;

  [[nodiscard]] bool same_pool(std::size_t row, std::size_t token, std::size_t other_row, std::size_t other_token) const {
    if (c.pool == Pool::kModel) return true;
    if (c.pool == Pool::kLayer) return row / static_cast<std::size_t>(kv_heads) == other_row / static_cast<std::size_t>(kv_heads);
    if (row != other_row) return false;
    if (c.pool == Pool::kRow) return true;
    const auto slice = static_cast<std::size_t>(c.slice_tokens);
    return token / slice == other_token / slice;
  }

  // How far a token's score is from the best score that we dropped where it competed, relative to that.
  [[nodiscard]] double gap(std::size_t row, std::size_t token) const {
    const auto& scores = c.pool == Pool::kSlice ? ours.first_stage : ours.ranked;
    if (scores.empty()) return std::numeric_limits<double>::infinity();
    float best = -std::numeric_limits<float>::infinity();
    for (std::size_t r = 0; r < scores.size(); ++r) {
      if (!same_pool(row, token, r, token) && c.pool != Pool::kSlice) continue;
      for (std::size_t i = 0; i < scores[r].size(); ++i)
        if (same_pool(row, token, r, i) && ours.keep[r][i] == 0 && !std::isnan(scores[r][i])) best = std::max(best, scores[r][i]);
    }
    return std::abs((static_cast<double>(scores[row][token]) - static_cast<double>(best)) / static_cast<double>(best));
  }
};

void compare_set(const Comparison& x, std::size_t row, Outcome& out) {
  ++out.sets;
  const auto &ours = x.ours.keep[row], &peer = x.peer[row];
  if (ours == peer) {
    ++out.identical;
    return;
  }
  std::int64_t tokens = 0;
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i)
    if (ours[i] != peer[i]) ++tokens, largest = std::max(largest, x.gap(row, i));
  EXPECT_LE(largest, x.c.tie) << "layer " << row / 2 << " head " << row % 2 << ": " << tokens
                              << " tokens differ, the boundary of the peer lies between " << x.edges[row].kept << " and "
                              << x.edges[row].dropped;
  ++out.tied;
  out.tie_tokens += tokens;
  out.largest_gap = std::max(out.largest_gap, largest);
}

Outcome compare(const PressCase& c, const std::string& ratio, const PeerResults& prompt, AttentionTrace& trace) {
  const Recipe recipe = recipe_of(c, ratio);
  EXPECT_TRUE(recipe.runs_in("replay"));
  const std::int32_t n = trace.prompt_tokens, units = c.channels ? trace.head_dim : n;
  Comparison x{c,
               run_prompt(trace, recipe, chunk_ends(c, recipe, n), c.channels),
               prompt.kept(c.press, ratio, units),
               prompt.edges(c.press, ratio, "edge"),
               prompt.edges(c.press, ratio, "edge_first"),
               trace.kv_heads};
  Outcome out;
  EXPECT_EQ(x.ours.keep.size(), x.peer.size());
  for (std::size_t row = 0; row < std::min(x.ours.keep.size(), x.peer.size()); ++row) compare_set(x, row, out);
  return out;
}

class KvpressParity : public testing::TestWithParam<std::int32_t> {};

TEST_P(KvpressParity, KeepsTheSameTokens) {
  if (GetParam() > 500 && std::getenv("KVLAB_SHORT") != nullptr) GTEST_SKIP() << "longer prompts take too long with KVLAB_SHORT set";
  const PeerResults prompt(GetParam());
  AttentionTrace trace = record_prompt(prompt);
  for (const PressCase& c : press_cases()) {
    for (const std::string& ratio : kRatios) {
      SCOPED_TRACE(c.press + " at ratio " + ratio);
      const Outcome out = compare(c, ratio, prompt, trace);
      table()[{c.press, ratio}] += out;
      if (out.tied > 0)
        fmt::print("{} {}: {} of {} sets differ in {} tokens, at most {:.1e} from the boundary\n", c.press, ratio, out.tied, out.sets,
                   out.tie_tokens, out.largest_gap);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Prompts, KvpressParity, testing::Values(307, 500, 864, 1280, 2049, 2866));

}  // namespace
}  // namespace kvlab
