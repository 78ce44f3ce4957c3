// Selectors with tiers on a GPU: the results of pages, with CPU memory for what no step reads.
#include "tests/cuda/engine_fixture.h"
#include "tests/engine/tiered_recipes.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

ModelConfig three_layers() {
  ModelConfig c = tiny_config();
  c.layers = 3;
  return c;
}

ModelShape tiny_shape() {
  const ModelConfig c = three_layers();
  return {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, 2, {c.rope_base, c.rope_scaling}};
}

class TieredCacheCuda : public CudaTest, public testing::WithParamInterface<std::string> {};

TEST_P(TieredCacheCuda, AnswersAsFromPagesWithWhatIsCountedFetched) {
  const std::string name = GetParam();
  if (left_out_of_short_run(name)) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = small_tiered(name);
  const auto model = make_device_model(three_layers(), tiny_weights(three_layers()), {}, ElementType::kBf16);
  if (!KvPolicy(recipe, tiny_shape()).needs().cpu_only.empty()) GTEST_SKIP() << "it runs only with backend cpu";
  const auto paged = model->make_cache(recipe, {.kv_bytes = 2}),
             tiered = model->make_cache(recipe, {.kv_bytes = 2, .tiers = true, .poisons = true});
  EngineSequence a[2] = {sequence_of(0, tiny_ids(143, 3), 128), sequence_of(0, tiny_ids(143, 3), 128)};
  EngineSequence b[2] = {sequence_of(1, tiny_ids(127, 5), 112), sequence_of(1, tiny_ids(127, 5), 112)};
  paged->start(a[0]), tiered->start(a[1]), paged->start(b[0]), tiered->start(b[1]);
  std::int64_t fetched = 0;
  const auto step = [&](std::int32_t of_a, std::int32_t of_b) {
    const auto run = [&](PolicyCache& cache, std::size_t i) {
      std::vector<StepPiece> pieces;
      if (of_a > 0) pieces.push_back({&a[i], of_a});
      if (of_b > 0) pieces.push_back({&b[i], of_b});
      const PieceBatch batch(std::move(pieces));
      return model->step(cache, batch.pieces, batch.tokens(), batch.rows);
    };
    ASSERT_EQ(run(*paged, 0), run(*tiered, 1)) << "after " << a[0].seen_tokens << " and " << b[0].seen_tokens << " tokens";
    const Traffic counted = tiered->take_traffic(), moved = tiered->take_moved();
    fetched += moved.fetched_bytes;
    EXPECT_EQ(moved.fetched_bytes * (name == "sentencekv" || name == "retrieval_attention" ? 2 : 1), counted.fetched_bytes);
  };
  step(88, 112);
  step(40, 1);
  for (std::int32_t i = 0; i < 2; ++i) step(1, 1);
  step(3, 0);
  step(1, 2);
  EXPECT_GT(fetched, 0);
  EXPECT_EQ(paged->positions(a[0]), tiered->positions(a[1]));
  EXPECT_EQ(paged->resident(a[0]), tiered->resident(a[1]));
  const std::int64_t line = 64 * 2, heads = 2;
  std::int64_t pages = tiered->pages().used_pages();
  for (EngineSequence* s : {&a[1], &b[1]}) {
    const PolicyCache::HeldBytes held = tiered->held(*s);
    std::int64_t layers = 0;
    for (std::int32_t l = 0; l < 3; ++l) layers += tiered->policy().lower(l) != Selector::Lower::kNothing ? 1 : 0;
    const std::int64_t dense_pages = (3 - layers) * heads * ((s->seen_tokens + 15) / 16);
    EXPECT_EQ(held.kv - dense_pages * 16 * 2 * line + held.host, layers * heads * s->seen_tokens * 2 * line);
    EXPECT_GT(held.host, 0);
    pages -= dense_pages;
    tiered->release(*s);
  }
  EXPECT_EQ(pages, 0);
}

INSTANTIATE_TEST_SUITE_P(Recipes, TieredCacheCuda, testing::ValuesIn(tiered_recipes(tiny_shape())),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace kvlab
