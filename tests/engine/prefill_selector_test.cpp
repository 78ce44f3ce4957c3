// Prompts in the engine under prefill selectors: what later layers and decode steps see of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/backend/engine_model.h"
#include "tests/engine/probe.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

constexpr std::int32_t kTokens = 300;

AttentionTrace recorded(const std::string& recipe, std::int32_t chunk) {
  RecordOptions options;
  options.chunk_tokens = chunk;
  options.decode_tokens = 2;
  return record_with_policy(probe_engine(), text_ids(kTokens), options, recipe_of(recipe), {}, kTokens - 20).trace;
}

// The largest difference of the last layer's keys, relative to the largest key.
double apart(const AttentionTrace& a, const AttentionTrace& b) {
  const std::vector<float>&x = a.layers.back().k, &y = b.layers.back().k;
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::max<double>(most, std::abs(x[i] - y[i]));
    largest = std::max<double>(largest, std::abs(x[i]));
  }
  return most / largest;
}

TEST(PrefillSelector, AllBlocksAreTheModelsOwnAttention) {
  for (const std::int32_t chunk : {0, 77}) {
    const AttentionTrace full = recorded("{recipe: full}", chunk);
    const AttentionTrace all = recorded("{recipe: full, prefill_selector: {block_topk: {top_blocks: 64, block_tokens: 32}}}", chunk);
    EXPECT_EQ(full.ids, all.ids) << chunk;
    EXPECT_LE(apart(full, all), 1e-4) << chunk;  // eight layers of sums in another order
  }
}

TEST(PrefillSelector, FewBlocksChangeLaterLayers) {
  const AttentionTrace full = recorded("{recipe: full}", 0);
  const AttentionTrace few =
      recorded("{recipe: full, prefill_selector: {a_shape: {sink_tokens: 16, recent_tokens: 16, block_tokens: 16}}}", 0);
  const std::vector<float>&x = few.layers.front().k, &y = full.layers.front().k;
  const std::ptrdiff_t prompt = std::ptrdiff_t{kTokens} * full.kv_heads * full.head_dim;  // tokens emitted later may differ
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + prompt, y.begin())) << "before any attention";
  EXPECT_GT(apart(full, few), 0.01);
}

}  // namespace
}  // namespace kvlab
