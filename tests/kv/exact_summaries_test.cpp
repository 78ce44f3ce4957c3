// Selectors make their summaries of keys, by which they rank pages, chunks and tokens, from the keys as computed. For every format, the
// same queries choose the same tokens.
#include <gtest/gtest.h>

#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// Tokens read in each decode step, layer by layer and row by row.
std::vector<std::vector<std::int32_t>> chosen_tokens(const AttentionTrace& trace, const Recipe& recipe) {
  PolicyWalk walk(trace, recipe, 7);
  std::vector<std::vector<std::int32_t>> chosen;
  walk.run([&](const PolicyStep& step, std::int32_t l) {
    walk.policy.before_attention(step, l, walk.segments);
    const Segment& rows = walk.segments.front();
    for (std::int32_t r = 0; r < walk.model.kv_heads && step.seqs.front().decoding(); ++r)
      if (rows.index == nullptr)
        chosen.emplace_back();
      else
        chosen.emplace_back(rows.index + rows.index_first[r], rows.index + rows.index_first[r + 1]);
  });
  return chosen;
}

class ExactSummaries : public testing::TestWithParam<const char*> {};

TEST_P(ExactSummaries, ChooseTheSameTokensWhateverTheFormat) {
  const std::string recipe = std::string("{recipe: full, selector: {") + GetParam() + "}";
  for (const std::int32_t chunk : {90, 0}) {
    const AttentionTrace trace = sample({.decode = 40, .chunk = chunk});  // pages fill while their older tokens are encoded
    const auto exact = chosen_tokens(trace, recipe_of(recipe + "}"));
    EXPECT_TRUE(std::any_of(exact.begin(), exact.end(), [](const auto& row) { return !row.empty() && std::ssize(row) < 120; }));
    for (const char* format :
         {"kivi: {bits: 2, group_tokens: 4, residual_tokens: 4}", "low_rank_keys: {rank: 2}", "cast: {type: fp8_e4m3}"}) {
      // A format that encodes inside the prompt leaves no exact keys of earlier chunks to what is built at the prompt's end.
      if (chunk > 0 && std::string(format).starts_with("cast")) continue;
      EXPECT_TRUE(chosen_tokens(trace, recipe_of(recipe + ", format: {" + format + "}}")) == exact) << format << ", chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Selectors, ExactSummaries,
    testing::Values("quest: {page_tokens: 8, budget_tokens: 40, dense_layers: 0}",
                    "lserve: {page_tokens: 16, logical_tokens: 8, budget_tokens: 64}",
                    "infllm2: {kernel_tokens: 8, stride_tokens: 4, block_tokens: 8, window_tokens: 8, top_blocks: 6, dense_tokens: 40}",
                    "act_qkv: {chunk_tokens: 8, budget_tokens: 80, sink_tokens: 8, recent_tokens: 8}",
                    "hybrid_sparse: {page_tokens: 4, budget_tokens: 60}", "leo_am: {leaf_tokens: 4}",
                    "moba: {chunk_tokens: 8, top_chunks: 4}", "mpcache: {large_tokens: 16, small_tokens: 8, dense_layers: 0}",
                    "shadow_kv: {chunk_tokens: 4, budget_tokens: 24, outlier_chunks: 4, local_chunks: 2}", "infinigen: {dense_layers: 0}",
                    "retrieval_chunks: {chunk_tokens: 8, budget_tokens: 48}", "rekv: {frame_tokens: 8, top_frames: 6, question_tokens: 16}",
                    "window_choice: {window_tokens: 8, budget_tokens: 40}",
                    "lsh_sampling: {bits: 4, tables: 10, sink_tokens: 2, local_tokens: 8, dense_every: 0}", "squeezed: {}",
                    "twilight: {of: all, mass_frac: 0.8, unpruned_layers: 0}"),
    [](const auto& info) {
      const std::string text = info.param;
      return text.substr(0, text.find(':'));
    });

}  // namespace
}  // namespace kvlab::test
