#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "kvpress_cases.h"
#include "kvpress_run.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<std::string> kRatios{"0.25", "0.5", "0.75"};
const std::vector<std::int32_t> kPrompts{307, 500, 864, 1280, 2049, 2866};
const char* const kReadme = KVLAB_SOURCE_DIR "/tests/parity/kvpress/README.md";

// What came of comparing sets, one per layer and KV head.
struct Outcome {
  std::int32_t sets = 0, identical = 0, tied = 0, followed = 0;
  std::int64_t tie_tokens = 0;
  double largest_gap = 0;  // relative distance of a tied token from the boundary
  void operator+=(const Outcome& o) {
    sets += o.sets, identical += o.identical, tied += o.tied, followed += o.followed, tie_tokens += o.tie_tokens;
    largest_gap = std::max(largest_gap, o.largest_gap);
  }
};

Recipe recipe_of(const PressCase& c, const std::string& ratio) {
  std::string overrides = c.overrides;
  if (const std::size_t at = overrides.find("RATIO"); at != std::string::npos) overrides.replace(at, 5, ratio);
  std::string text = "{recipe: kvpress_" + c.recipe;
  if (!c.channels) text += ", compression_ratio: " + ratio;
  if (!overrides.empty()) text += ", " + overrides;
  Params p = Params::from_text(text + "}", "kv_policy");
  return read_recipe(p);
}

PressOptions run_options(const PressCase& c, const Recipe& recipe, std::int32_t n) {
  PressOptions options;
  options.channels = c.channels;
  options.chunk_ends = {n};
  if (c.block_tokens == 0) return options;
  options.near_tie = c.tie;
  options.chunk_ends = {recipe.budget.of(n)};
  while (options.chunk_ends.back() < n) options.chunk_ends.push_back(std::min(n, options.chunk_ends.back() + c.block_tokens));
  return options;
}

double relative_gap(float score, float boundary) {
  if (score == boundary) return 0;
  const double gap = std::abs(static_cast<double>(score) - static_cast<double>(boundary)) / std::abs(static_cast<double>(boundary));
  return std::isfinite(gap) ? gap : static_cast<double>(kInfinity);
}

// One press at one ratio on one prompt: our sets and the peer's.
class Comparison {
 public:
  Comparison(const PressCase& c, const std::string& ratio, const PeerResults& prompt, AttentionTrace& trace)
      : c_(c),
        name_(c.press + " " + ratio),
        trace_(trace),
        recipe_(recipe_of(c, ratio)),
        options_(run_options(c, recipe_, trace.prompt_tokens)) {
    ours_ = run_prompt(trace, recipe_, options_);
    peer_ = prompt.kept(c.press, ratio, c.channels ? trace.head_dim : trace.prompt_tokens);
    edges_ = prompt.edges(c.press, ratio, "edge");
  }

  Outcome run() {
    Outcome out;
    EXPECT_TRUE(recipe_.runs_in("replay"));
    EXPECT_EQ(ours_.keep.size(), peer_.size());
    for (std::size_t row = 0; row < std::min(ours_.keep.size(), peer_.size()); ++row) compare(row, out);
    return out;
  }

 private:
  void compare(std::size_t row, Outcome& out) {
    ++out.sets;
    if (ours_.keep[row] == peer_[row]) {
      ++out.identical;
    } else if (follows_from_a_tie(row)) {
      ++out.followed;
      fmt::print("{} layer {} head {}: follows from a tie in an earlier block\n", name_, row / heads(), row % heads());
    } else {
      ++out.tied;
      std::int64_t tokens = 0;
      const double gap = largest_gap(row, tokens), peer_gap = gap_of_peer(row);
      const std::string where =
          fmt::format("{} layer {} head {}: {} tokens at most {:.1e} from the boundary, which is {:.1e} wide in kvpress", name_,
                      row / heads(), row % heads(), tokens, gap, peer_gap);
      fmt::print("{}\n", where);
      EXPECT_TRUE(c_.tie > 0 && std::max(gap, peer_gap) <= c_.tie) << where;
      out.tie_tokens += tokens;
      out.largest_gap = std::max(out.largest_gap, gap);
    }
  }

  [[nodiscard]] std::size_t heads() const { return static_cast<std::size_t>(trace_.kv_heads); }
  [[nodiscard]] std::pair<std::size_t, std::size_t> pool_rows(std::size_t row) const {
    if (c_.pool == Pool::kModel) return {0, ours_.keep.size()};
    if (c_.pool == Pool::kLayer) return {row / heads() * heads(), (row / heads() + 1) * heads()};
    return {row, row + 1};
  }

  // How far the tokens in which the sets differ are from the best score that we dropped where they compete.
  double largest_gap(std::size_t row, std::int64_t& tokens) const {
    const auto& scores = c_.pool == Pool::kSlice ? ours_.first_stage : ours_.ranked;
    double largest = 0;
    for (std::size_t i = 0; i < peer_[row].size(); ++i) {
      if (ours_.keep[row][i] == peer_[row][i]) continue;
      ++tokens;
      largest =
          std::max(largest, scores.empty() ? static_cast<double>(kInfinity) : relative_gap(scores[row][i], best_dropped(scores, row, i)));
    }
    return largest;
  }

  [[nodiscard]] float best_dropped(const std::vector<std::vector<float>>& scores, std::size_t row, std::size_t token) const {
    const auto [row_begin, row_end] = pool_rows(row);
    const auto slice = static_cast<std::size_t>(c_.slice_tokens), n = ours_.keep[row].size();
    const std::size_t begin = c_.pool == Pool::kSlice ? token / slice * slice : 0;
    const std::size_t end = c_.pool == Pool::kSlice ? std::min(n, begin + slice) : n;
    float best = -kInfinity;
    for (std::size_t r = row_begin; r < row_end; ++r)
      for (std::size_t i = begin; i < end; ++i)
        if (ours_.keep[r][i] == 0 && !std::isnan(scores[r][i])) best = std::max(best, scores[r][i]);
    return best;
  }

  // Between what the peer kept and dropped, by its own scores.
  [[nodiscard]] double gap_of_peer(std::size_t row) const {
    const auto [begin, end] = pool_rows(row);
    float kept = kInfinity, dropped = -kInfinity;
    for (std::size_t r = begin; r < end; ++r) kept = std::fmin(kept, edges_[r].kept), dropped = std::fmax(dropped, edges_[r].dropped);
    return relative_gap(dropped, kept);
  }

  // A tie in an earlier chunk changes what later ones are compared with. With the two tied tokens the other way round, the sets are equal.
  [[nodiscard]] bool follows_from_a_tie(std::size_t row) {
    for (const Boundary& tie : ours_.near_ties) {
      if (tie.row != row || tie.chunk + 1 == static_cast<std::int32_t>(options_.chunk_ends.size())) continue;
      PressOptions other = options_;
      other.swapped = tie;
      if (run_prompt(trace_, recipe_, other).keep[row] == peer_[row]) return true;
    }
    return false;
  }

  const PressCase& c_;
  std::string name_;
  AttentionTrace& trace_;
  Recipe recipe_;
  PressOptions options_;
  KeptSets ours_;
  std::vector<std::vector<std::uint8_t>> peer_;
  std::vector<PeerResults::Edge> edges_;
};

class KvpressPrompt : public testing::TestWithParam<std::int32_t> {};

TEST_P(KvpressPrompt, KeepsTheSameTokens) {
  if (GetParam() > 400 && short_run()) GTEST_SKIP() << "longer prompts take too long with KVLAB_SHORT set";
  if (GetParam() > 1000 && !full_run()) GTEST_SKIP() << "prompts above 1,000 tokens take half a minute: KVLAB_FULL=1 compares them too";
  const PeerResults prompt(GetParam());
  AttentionTrace trace = record_prompt(prompt);
  for (const PressCase& c : press_cases()) {
    for (const std::string& ratio : kRatios) Comparison(c, ratio, prompt, trace).run();
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, KvpressPrompt, testing::ValuesIn(kPrompts));

// A wrong forward pass would otherwise look like many wrong recipes.
void expect_same_keys_and_values(const PeerResults& prompt, const AttentionTrace& trace) {
  const auto width = static_cast<std::size_t>(trace.head_dim), heads = static_cast<std::size_t>(trace.kv_heads);
  for (std::size_t l = 0; l < trace.layers.size(); ++l) {
    for (const auto& [name, ours] : {std::pair{"k", &trace.layers[l].k}, std::pair{"v", &trace.layers[l].v}}) {
      for (const auto& [suffix, from] : {std::pair{"", std::size_t{0}}, std::pair{"_last", prompt.ids().size() - 8}}) {
        const std::vector<float> theirs = prompt.file().floats(fmt::format("check.L{}.{}{}", l, name, suffix), {2, 8, 64});
        for (std::size_t i = 0; i < theirs.size(); ++i) {
          const std::size_t head = i / (8 * width), token = from + i / width % 8;
          ASSERT_NEAR((*ours)[(token * heads + head) * width + i % width], theirs[i], 5e-5) << "layer " << l << " " << name << suffix;
        }
      }
    }
  }
}

TEST(KvpressParity, KeysAndValuesAreThePeers) {
  const PeerResults prompt(kPrompts.front());
  expect_same_keys_and_values(prompt, record_prompt(prompt));
}

// The presses that turn queries themselves, on the model with a RoPE scaling of another kind.
class KvpressRope : public testing::TestWithParam<std::string> {};

TEST_P(KvpressRope, KeepsTheSameTokens) {
  const PeerResults prompt(864, GetParam());
  AttentionTrace trace = record_prompt(prompt);
  expect_same_keys_and_values(prompt, trace);
  std::int32_t compared = 0;
  for (const PressCase& c : press_cases()) {
    if (!prompt.file().has(c.press + ".0.5.keep")) continue;
    for (const std::string& ratio : kRatios) Comparison(c, ratio, prompt, trace).run(), ++compared;
  }
  EXPECT_EQ(compared, 12);
}

INSTANTIATE_TEST_SUITE_P(Recorded, KvpressRope, testing::Values("llama3", "yarn"), [](const auto& info) { return info.param; });

std::string table() {
  std::string text =
      "| press | ratio | sets compared | identical | with ties | after a tie | tie tokens | largest gap "
      "|\n|---|---|---|---|---|---|---|---|\n";
  std::vector<std::vector<Outcome>> all(press_cases().size(), std::vector<Outcome>(kRatios.size()));
  for (const std::int32_t n : kPrompts) {
    const PeerResults prompt(n);
    AttentionTrace trace = record_prompt(prompt);
    for (std::size_t c = 0; c < all.size(); ++c)
      for (std::size_t r = 0; r < kRatios.size(); ++r) all[c][r] += Comparison(press_cases()[c], kRatios[r], prompt, trace).run();
  }
  const auto line = [&](const std::string& press, const std::string& ratio, const Outcome& o) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", press, ratio, o.sets, o.identical, o.tied, o.followed, o.tie_tokens,
                        o.tied == 0 ? "" : fmt::format("{:.1e}", o.largest_gap));
  };
  Outcome sum;
  for (std::size_t c = 0; c < all.size(); ++c)
    for (std::size_t r = 0; r < kRatios.size(); ++r) line(press_cases()[c].press, kRatios[r], all[c][r]), sum += all[c][r];
  line("all", "", sum);
  return text;
}

// Rewrites the README's table where KVLAB_PARITY_TABLE is set.
TEST(KvpressParity, Table) {
  if (std::getenv("KVLAB_PARITY_TABLE") == nullptr) GTEST_SKIP() << "KVLAB_PARITY_TABLE is not set: the README's table stays";
  std::stringstream old;
  old << std::ifstream(kReadme).rdbuf();
  std::string text = old.str();
  const std::string begin = "<!-- parity table: begin -->\n", end = "<!-- parity table: end -->";
  const std::size_t from = text.find(begin) + begin.size(), to = text.find(end);
  ASSERT_LT(from, to);
  text.replace(from, to - from, table());
  if (!HasFailure()) std::ofstream(kReadme) << text;
}

}  // namespace
}  // namespace kvlab
