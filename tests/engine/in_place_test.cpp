// The engine's logits with evictions in place are those with compaction, up to the order of sums.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/cache_steps.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

struct Decoded {
  std::vector<std::vector<float>> logits;  // [steps]
  std::vector<std::vector<std::int32_t>> held;
};

Decoded decode_with(const std::string& recipe) {
  constexpr std::int32_t kPrompt = 90, kTokens = 150;
  CacheRun run(recipe_of(recipe), sequence_of(0, some_ids(kTokens, 3), kPrompt));
  Decoded all;
  for (std::int32_t end = 45; end <= kTokens; end = end < kPrompt ? kPrompt : end + 1)
    all.logits.push_back(run.run(end - run.s.seen_tokens));
  all.held = run.cache.positions(run.s);
  run.cache.release(run.s);
  return all;
}

TEST(EngineInPlace, LogitsAreThoseOfCompaction) {
  for (const auto& [recipe, disposal] : {std::pair{"streaming, budget_tokens: 40", "drop"},
                                         {"streaming, budget_tokens: 100", "drop"},
                                         {"h2o, budget_tokens: 40", "drop"},
                                         {"tova, budget_tokens: 40", "drop"},
                                         {"d2o, budget_tokens: 40", "merge_nearest"},
                                         {"h2o_offload, budget_tokens: 40", "offload"}}) {
    const std::string own = std::string("{recipe: ") + recipe;
    const Decoded in_place = decode_with(own + "}");
    const Decoded compacted =
        decode_with(own + ", disposal: {" + disposal + ": {in_place: false" +
                    (disposal == std::string("merge_nearest") ? ", threshold: running_mean, new_share_frac: 0.5" : "") + "}}}");
    EXPECT_EQ(in_place.held, compacted.held) << recipe;
    ASSERT_EQ(in_place.logits.size(), compacted.logits.size());
    for (std::size_t t = 0; t < in_place.logits.size(); ++t)
      for (std::size_t i = 0; i < in_place.logits[t].size(); ++i)
        ASSERT_NEAR(in_place.logits[t][i], compacted.logits[t][i], 1e-3 * (1 + std::abs(compacted.logits[t][i])))
            << recipe << " step " << t;
  }
}

}  // namespace
}  // namespace kvlab
