#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <tuple>

#include "kvpress_cases.h"
#include "kvpress_run.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<std::int32_t> kPrompts{257, 1023, 1500};
const std::vector<std::string> kRopes{"", "llama3"};
const char* const kReadme = KVLAB_SOURCE_DIR "/tests/parity/kvpress/README.md";

// The result of comparing sets, one per layer and KV head.
struct Outcome {
  std::int32_t sets = 0, identical = 0, tied = 0, different = 0;
  std::int64_t tie_tokens = 0;
  double largest_gap = 0;  // relative distance of a tied token from the boundary
  void operator+=(const Outcome& o) {
    sets += o.sets, identical += o.identical, tied += o.tied, different += o.different, tie_tokens += o.tie_tokens;
    largest_gap = std::max(largest_gap, o.largest_gap);
  }
};

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size())) text.replace(at, word.size(), by);
  return text;
}

Recipe recipe_of(const PressCase& c, std::size_t ratio) {
  std::string text = "{recipe: " + c.recipe;
  if (!c.budget.empty()) text += ", " + c.budget;
  if (!c.overrides.empty()) text += ", " + c.overrides;
  if (!c.by_ratio.empty()) text = replaced(text, "BY_RATIO", c.by_ratio.at(ratio));
  Params p = Params::from_text(replaced(text, "RATIO", kPressRatios[ratio]) + "}", "kv_policy");
  return read_recipe(p);
}

double relative_gap(float score, float boundary) {
  if (score == boundary) return 0;
  const double gap = std::abs(static_cast<double>(score) - static_cast<double>(boundary)) / std::abs(static_cast<double>(boundary));
  return std::isfinite(gap) ? gap : static_cast<double>(kInfinity);
}

// One press at one ratio on one prompt: our sets and the peer's.
class Comparison {
 public:
  Comparison(const PressCase& c, std::size_t ratio, const PeerResults& prompt, AttentionTrace& trace)
      : c_(c), name_(fmt::format("{} {} {} {}", c.press, kPressRatios[ratio], trace.prompt_tokens, prompt.rope)), trace_(trace) {
    const Recipe recipe = recipe_of(c, ratio);
    EXPECT_TRUE(recipe.runs_in("replay"));
    ours_ = run_prompt(trace, recipe, c.channels);
    peer_ = prompt.kept(c.press, kPressRatios[ratio], c.channels ? trace.head_dim : trace.prompt_tokens);
    edges_ = prompt.edges(c.press, kPressRatios[ratio]);
  }

  Outcome run() {
    Outcome out;
    EXPECT_EQ(ours_.keep.size(), peer_.size());
    for (std::size_t row = 0; row < std::min(ours_.keep.size(), peer_.size()); ++row) compare(row, out);
    return out;
  }

 private:
  void compare(std::size_t row, Outcome& out) {
    ++out.sets;
    if (ours_.keep[row] == peer_[row]) {
      ++out.identical;
      return;
    }
    std::int64_t tokens = 0;
    const double in_row = largest_gap(row, tokens), gap = c_.judge.empty() ? in_row : exchange_gap(row);
    const double peer_gap = c_.judge.empty() ? gap_of_peer(row) : 0;
    const bool tied = c_.tie > 0 && std::max(gap, peer_gap) <= c_.tie;
    const std::string where =
        fmt::format("{} layer {} head {}: {} tokens at most {:.1e} from the boundary, which is {:.1e} wide in kvpress", name_,
                    row / heads(), row % heads(), tokens, gap, peer_gap);
    fmt::print("{}\n", where);
    EXPECT_TRUE(tied) << where;
    ++(tied ? out.tied : out.different);
    if (!tied) return;
    out.tie_tokens += tokens;
    out.largest_gap = std::max(out.largest_gap, gap);
  }

  [[nodiscard]] std::size_t heads() const { return static_cast<std::size_t>(trace_.kv_heads); }
  [[nodiscard]] std::pair<std::size_t, std::size_t> pool_rows(std::size_t row) const {
    if (c_.pool == Pool::kModel) return {0, ours_.keep.size()};
    if (c_.pool == Pool::kLayer) return {row / heads() * heads(), (row / heads() + 1) * heads()};
    return {row, row + 1};
  }

  // How far the scores of tokens that only we keep are from those of as many tokens that only the peer keeps, in order.
  double exchange_gap(std::size_t row) {
    if (judged_.empty()) judged_ = run_prompt(trace_, load_recipe(c_.judge), false).scored;
    const std::vector<float>& scores = judged_[row];
    std::vector<float> ours, theirs;
    for (std::size_t i = 0; i < peer_[row].size(); ++i)
      if (ours_.keep[row][i] != peer_[row][i]) (peer_[row][i] == 0 ? ours : theirs).push_back(scores[i]);
    if (ours.size() != theirs.size()) return static_cast<double>(kInfinity);
    std::sort(ours.begin(), ours.end()), std::sort(theirs.begin(), theirs.end());
    double largest = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) largest = std::max(largest, relative_gap(ours[i], theirs[i]));
    return largest;
  }

  // How far the tokens in which the sets differ are from the best score that we dropped where they compete.
  double largest_gap(std::size_t row, std::int64_t& tokens) const {
    const auto& scores = c_.pool == Pool::kSlice ? ours_.first_stage : c_.pool == Pool::kRow ? ours_.ranked : ours_.scored;
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

  // Between the tokens that the peer kept and dropped, by its own scores; 0 if these were not recorded.
  [[nodiscard]] double gap_of_peer(std::size_t row) const {
    const auto [begin, end] = pool_rows(row);
    float kept = kInfinity, dropped = -kInfinity;
    for (std::size_t r = begin; r < end; ++r) kept = std::fmin(kept, edges_[r].kept), dropped = std::fmax(dropped, edges_[r].dropped);
    return kept == kInfinity || dropped == -kInfinity ? 0 : relative_gap(dropped, kept);
  }

  const PressCase& c_;
  std::string name_;
  AttentionTrace& trace_;
  KeptSets ours_;
  std::vector<std::vector<float>> judged_;  // scores of the judge
  std::vector<std::vector<std::uint8_t>> peer_;
  std::vector<PeerResults::Edge> edges_;
};

// A wrong forward pass would otherwise look like many wrong recipes.
void expect_same_keys_and_values(const PeerResults& prompt, const AttentionTrace& trace) {
  const auto width = static_cast<std::size_t>(trace.head_dim), heads = static_cast<std::size_t>(trace.kv_heads);
  for (std::size_t l = 0; l < trace.layers.size(); ++l) {
    for (const auto& [name, ours] : {std::pair{"k", &trace.layers[l].k}, std::pair{"v", &trace.layers[l].v}}) {
      for (const auto& [suffix, from] : {std::pair{"", std::size_t{0}}, std::pair{"_last", prompt.ids.size() - 8}}) {
        const std::vector<float> theirs = prompt.file.floats(fmt::format("check.L{}.{}{}", l, name, suffix), {2, 8, 64});
        for (std::size_t i = 0; i < theirs.size(); ++i) {
          const std::size_t head = i / (8 * width), token = from + i / width % 8;
          ASSERT_NEAR((*ours)[(token * heads + head) * width + i % width], theirs[i], 5e-5) << "layer " << l << " " << name << suffix;
        }
      }
    }
  }
}

// The tokens that kvpress kept on a prompt are recorded by hand; a recording takes up to half an hour.
constexpr const char* kNotRecorded = "not recorded yet: tests/parity/kvpress/README.md has the command";

bool is_recorded(std::int32_t tokens, const std::string& rope) {
  const std::string name = fmt::format("prompt_{}{}{}.safetensors", tokens, rope.empty() ? "" : ".", rope);
  return std::filesystem::exists(std::filesystem::path(kReadme).parent_path() / "results" / name);
}

// Every press that the file holds, at every ratio; one Outcome for each, in the order of press_cases().
std::vector<std::vector<Outcome>> compare_all(std::int32_t tokens, const std::string& rope) {
  const PeerResults prompt(tokens, rope);
  AttentionTrace trace = record_prompt(prompt);
  if (prompt.file.has("check.L0.k")) expect_same_keys_and_values(prompt, trace);
  std::vector<std::vector<Outcome>> all;
  for (const PressCase& c : press_cases()) {
    all.emplace_back(kPressRatios.size());
    if (!prompt.file.has(c.press + ".0.5.keep")) continue;
    for (std::size_t r = 0; r < kPressRatios.size(); ++r) all.back()[r] = Comparison(c, r, prompt, trace).run();
  }
  return all;
}

std::int32_t presses_in(const std::vector<std::vector<Outcome>>& all) {
  return static_cast<std::int32_t>(std::count_if(all.begin(), all.end(), [](const auto& press) { return press.front().sets > 0; }));
}

class KvpressPrompt : public testing::TestWithParam<std::tuple<std::int32_t, std::string>> {};

TEST_P(KvpressPrompt, KeepsTheSameTokens) {
  const auto& [tokens, rope] = GetParam();
  if ((tokens > 400 || !rope.empty()) && short_run()) GTEST_SKIP() << "one prompt is enough with KVLAB_SHORT set";
  if (tokens > 400 && !full_run()) GTEST_SKIP() << "prompts above 1,000 tokens take minutes: KVLAB_FULL=1 compares them too";
  if (!is_recorded(tokens, rope)) GTEST_SKIP() << kNotRecorded;
  EXPECT_EQ(presses_in(compare_all(tokens, rope)), static_cast<std::int32_t>(press_cases().size()));
}

INSTANTIATE_TEST_SUITE_P(Recorded, KvpressPrompt, testing::Combine(testing::ValuesIn(kPrompts), testing::ValuesIn(kRopes)));

// KVzip repeats a prompt in chunks of 2,048 tokens.
TEST(KvpressParity, LongPromptOfTwoChunks) {
  if (!full_run()) GTEST_SKIP() << "takes half a minute: KVLAB_FULL=1 compares it too";
  if (!is_recorded(2049, "")) GTEST_SKIP() << kNotRecorded;
  EXPECT_EQ(presses_in(compare_all(2049, "")), 3);
}

// The presses that turn queries themselves, on the model with another RoPE scaling.
TEST(KvpressParity, TurnsQueriesWithYarn) {
  if (short_run()) GTEST_SKIP() << "one prompt is enough with KVLAB_SHORT set";
  EXPECT_EQ(presses_in(compare_all(864, "yarn")), 4);
}

std::string table() {
  std::string text =
      "| press | sets compared | identical | differing by ties | differing | tie tokens | largest gap |\n|---|---|---|---|---|---|---|\n";
  std::vector<Outcome> all(press_cases().size());
  for (const std::string& rope : kRopes) {
    for (const std::int32_t n : kPrompts) {
      if (!is_recorded(n, rope)) continue;
      const std::vector<std::vector<Outcome>> of_prompt = compare_all(n, rope);
      for (std::size_t c = 0; c < all.size(); ++c)
        for (const Outcome& o : of_prompt[c]) all[c] += o;
    }
  }
  const auto line = [&](const std::string& press, const Outcome& o) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", press, o.sets, o.identical, o.tied, o.different, o.tie_tokens,
                        o.tied == 0 ? "" : fmt::format("{:.1e}", o.largest_gap));
  };
  Outcome sum;
  for (std::size_t c = 0; c < all.size(); ++c) line(press_cases()[c].press, all[c]), sum += all[c];
  line("all", sum);
  return text;
}

// CPU time of scoring and selecting on the prompt of 1,500 tokens, best of three, where KVLAB_PARITY_TIMES is set; the peer's times are
// those of tests/parity/kvpress/time_kvpress.py.
TEST(KvpressParity, Times) {
  if (std::getenv("KVLAB_PARITY_TIMES") == nullptr) GTEST_SKIP() << "KVLAB_PARITY_TIMES is not set: no times are taken";
  AttentionTrace trace = record_prompt(PeerResults(1500));
  for (const PressCase& c : press_cases()) {
    double best = 1e30;
    for (int i = 0; i < 3; ++i) best = std::min(best, run_prompt(trace, recipe_of(c, 1), c.channels).cpu_ms);
    EXPECT_LT(best, 1e30);
    fmt::print("{},{:.2f}\n", c.press, best);
  }
}

// Rewrites the README's table where KVLAB_PARITY_TABLE is set.
TEST(KvpressParity, Table) {
  if (std::getenv("KVLAB_PARITY_TABLE") == nullptr) GTEST_SKIP() << "KVLAB_PARITY_TABLE is not set: the README's table stays";
  std::stringstream old;
  old << std::ifstream(kReadme).rdbuf();
  std::string text = old.str();
  const std::string begin = "<!-- parity table: begin -->\n", end = "<!-- parity table: end -->";
  const std::size_t from = text.find(begin) + begin.size(), to = text.find(end);
  ASSERT_LE(from, to);
  text.replace(from, to - from, table());
  if (!HasFailure()) std::ofstream(kReadme) << text;
}

}  // namespace
}  // namespace kvlab
