#include <sstream>

#include "base/ceil_div.h"
#include "tests/kv/host_fixture.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kFootprintModel{4, 8, 2, 64, 128};
constexpr std::int32_t kBlock = 16;
constexpr std::int64_t kRows = 8;  // layers x KV heads

std::vector<std::string> serving_recipes() {
  std::vector<std::string> names;
  for (const std::string& name : recipe_names()) {
    const Recipe& recipe = shipped_recipe(name);
    if (recipe.runs_in("cost") && !KvPolicy(recipe, kFootprintModel).needs().future_queries) names.push_back(name);
  }
  return names;
}

Recipe small_footprint_recipe(const std::string& name) {
  if (name.starts_with("shares_")) return with_budget(name, 0);
  if (name.starts_with("by_share_")) return recipe_of("{recipe: " + name.substr(9) + ", budget_frac: 0.4}");
  const Recipe recipe = load_recipe(name);
  return recipe.has_budget ? with_budget(name, 130) : recipe;
}

using OpTotals = std::map<std::string, std::array<std::int64_t, 3>>;
OpTotals by_name(const std::vector<PolicyOp>& ops) {
  OpTotals all;
  for (const PolicyOp& o : ops) {
    auto& sum = all[std::string(o.name)];
    sum[0] += o.launches, sum[1] += o.bytes, sum[2] += o.flops;
  }
  return all;
}

class ServingRecipe : public testing::TestWithParam<std::string> {};

TEST_P(ServingRecipe, ChargesWhatThePartsCall) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = small_footprint_recipe(GetParam());
  RecipeFootprint footprint(recipe, kFootprintModel, kBlock);
  ShapeRun parts(recipe, kFootprintModel);
  for (std::uint64_t draw = 0; draw < 12; ++draw) {
    std::vector<SeqState> batch;
    std::vector<ShapeRun::Seq> shapes;
    for (std::uint64_t s = 0; s < 1 + draw % 5; ++s) {
      const auto pick = [&](std::uint64_t what, std::uint64_t n) {
        return static_cast<std::int32_t>(Draw{7, Purpose::kTest, draw, s, what}.below(n));
      };
      const std::int32_t prompt = 1 + pick(0, 300);
      SeqState seq{0, prompt};
      std::int32_t next = prompt;
      for (std::int32_t decoded = pick(1, 30); decoded > 0; --decoded, next = 1)
        seq = footprint.step(seq.taking(next)).after(seq.taking(next));
      shapes.push_back(footprint.shape_of(seq.taking(next)));
      batch.push_back(seq.taking(next));
    }
    const PolicyWork work = work_of(footprint, batch);
    parts.forget();
    const ShapeRun::Result result = parts.step(shapes);
    OpTotals expected;
    double attended = 0;
    for (const OpCall& c : result.calls) {
      if (c.op == "attend") continue;
      auto& sum = expected[std::string(c.op)];
      ++sum[0], sum[1] += c.bytes, sum[2] += c.flops;
    }
    OpTotals charged = by_name(work.ops);
    for (const auto& [name, layers] : {std::pair("fetch", &result.fetched), std::pair("read_disk", &result.disk)}) {
      EXPECT_EQ(charged.contains(name) ? charged[name][1] : 0, std::accumulate(layers->begin(), layers->end(), std::int64_t{0}))
          << name << ", batch " << draw;
      charged.erase(name);
    }
    EXPECT_EQ(charged, expected) << "batch " << draw;
    if (recipe.format == "native" && recipe.disposal == "drop" && recipe.selector == "all") {
      for (const SeqState& s : batch)
        if (s.new_tokens == 1) attended += s.attended_tokens + 1;
      EXPECT_NEAR(attended, result.attended_tokens, 0.51 * static_cast<double>(batch.size())) << "batch " << draw;
    }
  }
}

// Memory: the peak covers what is kept, pages hold what rows hold, and the walk of lengths is the parts' own.
TEST_P(ServingRecipe, MemoryFollowsTheParts) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = small_footprint_recipe(GetParam());
  RecipeFootprint footprint(recipe, kFootprintModel, kBlock);
  ExpectedCounts counts(recipe, kFootprintModel);
  ShapeRun parts(recipe, kFootprintModel, &counts);
  const auto trigger = recipe.make_trigger();
  SeqState seq{0, 260};
  ShapeRun::Seq shape = footprint.shape_of(seq.taking(260));
  std::int32_t next = 260;
  for (int t = 0; t < 50; ++t, next = 1) {
    const FootprintStep done = footprint.step(seq.taking(next));
    const SeqStep step{0, seq.seen_tokens, next, seq.prompt_tokens, -1};
    counts.set_target(parts.policy().target(step, seq.held_tokens + next).value_or(0), trigger->full(step, recipe.budget), step.end());
    const ShapeRun::Result result = parts.step(std::span(&shape, 1));
    const std::int64_t in_place = recipe.make_disposal()->acts_alone() && done.leaves_hashed ? (260 + t + kBlock - 1) / kBlock * kRows : 0;
    EXPECT_GE(done.peak_pages + in_place, done.kept_pages) << "step " << t;
    seq = done.after(seq.taking(next));
    EXPECT_EQ(footprint.shape_of(seq.taking(1)).held.size() > 1 ? footprint.shape_of(seq.taking(1)).held
                                                                : std::vector(std::size_t{kRows}, seq.held_tokens),
              result.held)
        << "step " << t;
    const double token_bytes = recipe_pages(recipe, kFootprintModel, kBlock).token_bytes;
    const double page = token_bytes * kBlock / kRows;
    if (seq.left_hashed) {
      EXPECT_GE(static_cast<double>(done.kept_pages) * page, static_cast<double>(result.after.gpu) - 1) << "step " << t;
      EXPECT_LE(static_cast<double>(done.kept_pages - kRows) * page, static_cast<double>(result.after.gpu)) << "step " << t;
    } else {
      const double blocks = static_cast<double>(ceil_div(seq.seen_tokens, kBlock) * kRows + done.kept_pages);
      EXPECT_GE(blocks * page, static_cast<double>(result.after.gpu) - 1) << "step " << t;
    }
    shape.seen_tokens = seq.seen_tokens, shape.new_tokens = 1, shape.held = result.held;
    shape.inputs.pass.clear();
  }
}

// Prompts of any length are served: with the recipe's own budget, and with a share that is less than what always stays.
TEST_P(ServingRecipe, ServesShortPrompts) {
  if (left_out_of_short_run(GetParam()) || GetParam().find("share") != std::string::npos) GTEST_SKIP() << kLeftOut;
  const Recipe own = shipped_recipe(GetParam());
  std::vector<Recipe> budgets{own};
  if (own.has_budget) budgets.push_back(recipe_of("{recipe: " + GetParam() + ", budget_frac: 0.25}"));
  for (const Recipe& recipe : budgets) {
    RecipeFootprint footprint(recipe, kFootprintModel, kBlock);
    for (const std::int32_t prompt : {1, 2, 5, 27, 180}) {
      SCOPED_TRACE(fmt::format("{} tokens, share {}", prompt, recipe.budget.frac));
      SeqState seq{0, prompt};
      std::int32_t next = prompt;
      for (int t = 0; t < 6; ++t, next = 1) {
        work_of(footprint, seq.taking(next));
        const FootprintStep done = footprint.step(seq.taking(next));
        seq = done.after(seq.taking(next));
        EXPECT_LE(seq.held_tokens, seq.seen_tokens);
        EXPECT_GE(seq.held_tokens, recipe.peer_ties ? 0 : 1);
        const bool fits = prompt <= 2 && own.budget.tokens > 0 && recipe.budget.frac == 0;
        EXPECT_EQ(seq.held_tokens, fits ? seq.seen_tokens : seq.held_tokens);
      }
      EXPECT_GT(footprint.pages_at_end(prompt, seq.seen_tokens), -1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ServingRecipe, testing::ValuesIn(serving_recipes()), [](const auto& info) { return info.param; });
// Recipes whose selector takes a share of each prompt.
std::vector<std::string> by_share_names() {
  std::vector<std::string> names;
  std::istringstream shares(
      "quest quest_union token_select infllm2 nsa exact_topk hip lserve_pages recycled_attention triforce_cache magicdec_cache "
      "twilight squeezed_attention kcache instinfer alisa attention_predictor dsa leoam infinigen mpcache_dynamic sparse_window "
      "a2ats actqkv pqcache rekv retrieval_attention sentencekv shadowkv spe_cache");
  for (std::string name; shares >> name;) names.push_back("by_share_" + name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(ByShare, ServingRecipe, testing::ValuesIn(by_share_names()), [](const auto& info) { return info.param; });

// A quarter of 800 tokens is 200 tokens, of 400 tokens 100.
TEST(RecipeFootprint, AShareIsThatOfEachPrompt) {
  for (const std::string& by_share : by_share_names()) {
    const std::string name = by_share.substr(9);
    RecipeFootprint share(recipe_of("{recipe: " + name + ", budget_frac: 0.25}"), kFootprintModel, kBlock);
    const auto charged = [](RecipeFootprint& footprint, std::int32_t prompt) {
      SeqState seq{0, prompt};
      seq = footprint.step(seq.taking(prompt)).after(seq.taking(prompt));
      std::vector<SeqState> batch{seq.taking(1)};
      const OpTotals ops = by_name(work_of(footprint, batch).ops);
      return std::pair{batch.front().attended_tokens, ops};
    };
    for (const std::int32_t prompt : {400, 800}) {
      RecipeFootprint tokens(load_recipe(name, prompt / 4), kFootprintModel, kBlock);
      EXPECT_EQ(charged(share, prompt), charged(tokens, prompt)) << name << " " << prompt;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(UnequalShares, ServingRecipe, testing::ValuesIn(unequal_shares_names()),
                         [](const auto& info) { return info.param; });

// 260 tokens cut to 64: four pages in each of 8 rows, and 4 bytes of position per token make them a little larger than plain ones.
TEST(RecipeFootprint, SnapKvByHand) {
  const Recipe recipe = load_recipe("snapkv", 64);
  RecipeFootprint footprint(recipe, kFootprintModel, kBlock);
  EXPECT_DOUBLE_EQ(recipe_pages(recipe, kFootprintModel, kBlock).token_bytes, kRows * (2 * 64 * 2 + 4));
  const FootprintStep chunk = footprint.step(SeqState{0, 260}.taking(200));
  EXPECT_EQ(std::tuple(chunk.leaves_hashed, chunk.peak_pages), std::tuple(false, 0));
  const FootprintStep last = footprint.step(SeqState{200, 260, 200, 0, false, false}.taking(60));
  EXPECT_TRUE(last.leaves_hashed);
  EXPECT_EQ(std::tuple(last.kept_pages, last.held_tokens), std::tuple(4 * kRows, 64));
  const FootprintStep decode = footprint.step(SeqState{260, 260, 64, 0, true, false}.taking(1));
  EXPECT_EQ(std::tuple(decode.kept_pages, decode.held_tokens), std::tuple(5 * kRows, 65));
  EXPECT_EQ(footprint.pages_at_end(260, 260 + 17), 6 * kRows);
}

// Heads of a layer compete for its share, which falls from layer to layer: the mean of what they keep is that share, in every layer.
TEST(RecipeFootprint, CompetingHeadsKeepTheShareOfTheirLayer) {
  const Recipe recipe = recipe_of("{recipe: snapkv, budget_tokens: 130, allocator: {ada: {layers: {pyramid: {window_tokens: 8}}}}}");
  const auto pyramid = recipe_of("{recipe: snapkv, budget_tokens: 130, allocator: {pyramid: {window_tokens: 8}}}").make_allocator();
  for (const std::int32_t prompt : {200, 260, 1000}) {
    RecipeFootprint footprint(recipe, kFootprintModel, kBlock);
    const SeqState seq{0, prompt};
    const ShapeRun::Seq cut = footprint.shape_of(footprint.step(seq.taking(prompt)).after(seq.taking(prompt)).taking(1));
    for (std::int32_t r = 0; r < kRows; ++r)
      EXPECT_EQ(cut.held.size() > 1 ? cut.held[static_cast<std::size_t>(r)] : cut.held.front(),
                pyramid->expected(kFootprintModel, r / 2, r % 2, 130, prompt))
          << prompt << " row " << r;
  }
}

// Half of the heads keep everything, in decode and after each chunk of a prompt too; without data it is unknown which half.
TEST(RecipeFootprint, RetrievalHeadsStayWhole) {
  for (const std::int32_t chunk : {1000, 250}) {
    RecipeFootprint footprint(recipe_of("{recipe: duo, budget_tokens: 130}"), kFootprintModel, kBlock);
    SeqState seq{0, 1000};
    for (std::int32_t next = chunk; seq.seen_tokens < 1005; next = seq.seen_tokens < 1000 ? chunk : 1) {
      seq = footprint.step(seq.taking(next)).after(seq.taking(next));
      const std::vector<std::int32_t> held = footprint.shape_of(seq.taking(1)).held;
      EXPECT_EQ(std::count(held.begin(), held.end(), 130), kRows / 2) << seq.seen_tokens;
      EXPECT_EQ(std::count(held.begin(), held.end(), seq.seen_tokens), kRows / 2) << seq.seen_tokens;
    }
  }
}

// No step of a sequence that is cut with its prompt takes more private pages than the bound by which it is judged before it runs, and the
// bound is met but for a page or two per row and what the trigger lets it hold beyond the budget.
class PagesAtEnd : public testing::TestWithParam<std::string> {};
TEST_P(PagesAtEnd, BoundEveryStep) {
  const Recipe recipe = small_footprint_recipe(GetParam());
  for (const std::int32_t prompt : {140, 300}) {
    RecipeFootprint footprint(recipe, kFootprintModel, kBlock);
    SeqState seq{0, prompt};
    if (!footprint.step(seq.taking(prompt)).leaves_hashed) continue;
    std::int64_t most = 0;
    for (std::int32_t next = prompt; seq.seen_tokens < prompt + 320; next = 1) {
      const FootprintStep done = footprint.step(seq.taking(next));
      seq = done.after(seq.taking(next));
      most = std::max(most, done.kept_pages);
      ASSERT_LE(done.kept_pages, footprint.pages_at_end(prompt, seq.seen_tokens)) << seq.seen_tokens << " of " << prompt;
    }
    const std::int64_t slack = recipe.make_trigger()->slack_tokens() / kBlock;
    EXPECT_LE(footprint.pages_at_end(prompt, seq.seen_tokens), most + (2 + slack) * kRows) << prompt;
  }
}
std::vector<std::string> cut_in_decode_names() {
  std::vector<std::string> names = unequal_shares_names();
  names.insert(names.end(), {"duo", "h2o", "lagkv", "razor", "scissorhands", "snapkv", "streaming", "tova"});
  return names;
}
INSTANTIATE_TEST_SUITE_P(Recipes, PagesAtEnd, testing::ValuesIn(cut_in_decode_names()), [](const auto& info) { return info.param; });

TEST(RecipeFootprint, RecomputesInPieces) {
  RecipeFootprint footprint(load_recipe("snapkv", 64), kFootprintModel, kBlock);
  const FootprintStep first = footprint.step(SeqState{0, 260, 0, 0, true, true}.taking(100));
  EXPECT_EQ(std::tuple(first.held_tokens, first.kept_pages), std::tuple(64, 4 * kRows));
  const FootprintStep second = footprint.step(SeqState{100, 260, 64, 0, true, true}.taking(100));
  EXPECT_EQ(second.held_tokens, 64);
  EXPECT_LE(second.peak_pages, 11 * kRows);
}

// On its way back a sequence of 100 prompt tokens and 30 more is cut where a chunk leaves enough of it, by a pass of the whole prompt once.
TEST(RecipeFootprint, ChunksOnTheWayBackEndThePrompt) {
  const auto ends = [](const std::string& text, std::int32_t seen, std::int32_t tokens) {
    const Recipe recipe = recipe_of(text);
    return RecipeFootprint(recipe, kFootprintModel, kBlock)
        .step(SeqState{seen, 100, std::min(seen, 50), 0, true, true}.taking(tokens))
        .ends_prompt;
  };
  const std::string share = "{recipe: snapkv, budget_frac: 0.5}";  // of which 32 tokens always stay
  EXPECT_FALSE(ends(share, 0, 63));
  EXPECT_TRUE(ends(share, 0, 64));
  EXPECT_TRUE(ends(share, 64, 1));
  EXPECT_TRUE(ends("{recipe: snapkv, budget_tokens: 48}", 0, 20));
  EXPECT_FALSE(ends("{recipe: kvzip, budget_tokens: 48}", 0, 99));
  EXPECT_TRUE(ends("{recipe: kvzip, budget_tokens: 48}", 64, 40));
  EXPECT_FALSE(ends("{recipe: kvzip, budget_tokens: 48}", 104, 26));
  EXPECT_FALSE(ends("{recipe: citrus, budget_tokens: 300}", 64, 40));  // is cut chunk by chunk anyway
}

// Packed tokens make more of them fit into a block; the residual window is paid for by each sequence.
TEST(RecipeFootprint, PackedFormatsFillBlocksTighter) {
  const double plain = kRows * 2 * 64 * 2;
  EXPECT_DOUBLE_EQ(recipe_pages(load_recipe("fp8"), kFootprintModel, kBlock).token_bytes, plain / 2);
  EXPECT_LT(recipe_pages(load_recipe("kivi2"), kFootprintModel, kBlock).token_bytes, 0.3 * plain);
  RecipeFootprint kivi(load_recipe("kivi2"), kFootprintModel, kBlock);
  EXPECT_GT(kivi.step(SeqState{0, 260}.taking(260)).kept_pages, 0);
  RecipeFootprint fp8(load_recipe("fp8"), kFootprintModel, kBlock);
  EXPECT_EQ(fp8.step(SeqState{0, 260}.taking(260)).kept_pages, 0);
}

// Tokens read by a decode step after 260 tokens of prompt and 40 decoded.
std::int32_t tokens_read(const Recipe& recipe, KvReads reads) {
  RecipeFootprint footprint(recipe, kFootprintModel, kBlock, reads);
  SeqState seq{0, 260};
  seq = footprint.step(seq.taking(260)).after(seq.taking(260));
  for (std::int32_t i = 0; i < 40; ++i) seq = footprint.step(seq.taking(1)).after(seq.taking(1));
  std::vector<SeqState> batch{seq.taking(1)};
  work_of(footprint, batch);
  return batch.front().attended_tokens;
}

TEST(RecipeFootprint, DecodedTokensAreReadAsPlainOnes) {
  for (const char* name : {"kivi2", "kivi4", "fp8", "gear", "zipcache"}) {
    EXPECT_LT(tokens_read(load_recipe(name), KvReads::kStored), 200) << name << ": fewer bytes than 300 tokens have";
    EXPECT_EQ(tokens_read(load_recipe(name), KvReads::kDecoded), 300) << name;
  }
  for (const char* name : {"streaming", "snapkv", "quest"}) {
    const Recipe plain = load_recipe(name, 130);
    EXPECT_NEAR(tokens_read(plain, KvReads::kDecoded), tokens_read(plain, KvReads::kStored), 1) << name;
  }
}

// Chunks of 2,048 tokens with an instruction of 16; with gradients chunks of 512, each forward and backward, whose attention counts 2.5
// times.
TEST(RecipeFootprint, PassesOfAPromptAreCharged) {
  const auto passes = [](const char* name) {
    RecipeFootprint footprint(load_recipe(name, 64), kFootprintModel, kBlock);
    std::vector<std::pair<std::int32_t, std::int32_t>> all;
    for (const ForwardPass& pass : work_of(footprint, SeqState{0, 1100}.taking(1100)).passes)
      all.emplace_back(pass.new_tokens, pass.kv_tokens);
    return all;
  };
  using Passes = std::vector<std::pair<std::int32_t, std::int32_t>>;
  EXPECT_EQ(passes("kvzip"), (Passes{{1116, 1100}}));
  EXPECT_EQ(passes("kvgrad"), (Passes{{528, 1100}, {528, 2750}, {528, 1100}, {528, 2750}, {92, 1100}, {92, 2750}}));
  EXPECT_EQ(passes("snapkv"), Passes{});
}

TEST(RecipeFootprint, AnOracleCannotServe) {
  EXPECT_EQ(error_of([] { RecipeFootprint(recipe_of("{recipe: snapkv, scorer: oracle}"), kFootprintModel, kBlock); }),
            "recipe 'snapkv' cannot serve: it asks for queries of the future, which only a recording has");
}

}  // namespace
}  // namespace kvlab::test
