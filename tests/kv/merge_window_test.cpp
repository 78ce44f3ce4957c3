#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

// With keys of 0 attention is uniform: token i of n has received sum over t >= i of 1 / (t + 1).
TEST(MergeWindowDisposal, UsesTheAttentionItSaw) {
  auto disposal = make_part<DisposalRegistry>("merge_window", "{window_tokens: 2}");
  disposal->bind(0);
  SmallLayer layer(SmallLayer::Vectors(4, {0, 0}), {{12, 0}, {0, 0}, {0, 0}, {0, 0}}, 1, 1);
  const std::vector<float> q(8);
  const Queries queries{q.data(), 4, 0};
  LayerStep step{layer.ops, layer.model, 0, {&layer.seq, 1}, layer.store.rows(), {}, 7};
  step.in.step = std::span(&queries, 1);
  disposal->observe(step);
  for (std::int32_t i = 0; i < 4; ++i) {
    double expected = 0;
    for (std::int32_t t = i; t < 4; ++t) expected += 1.0 / (t + 1);
    float received = 0;
    std::memcpy(&received, &step.kv.word(0, 0, i), 4);
    EXPECT_NEAR(received, expected, 1e-6);
  }
  layer.dispose(*disposal, KeptLists({{1, 2, 3}}));  // more attention than any other: certain
  EXPECT_EQ(layer.value(0, 0)[0], 6);
  EXPECT_EQ(layer.value(0, 1)[0], 6);
  EXPECT_EQ(layer.value(0, 2)[0], 0);
  // The full cache gives 12 / 4; deleting gives 0, spreading (6 + 6) / 3.
  EXPECT_FLOAT_EQ(attend_row0(layer, nullptr, {1, 1})[0], 4);
}

TEST(MergeWindowDisposal, DrawsDependOnTheSeedAlone) {
  const auto values = [](std::uint64_t seed) {
    auto disposal = make_part<DisposalRegistry>("merge_window");
    RandomLayer layer({1, 4, 2, 8, 16}, 2, 65, 3, 1);
    LayerStep step = layer.prompt_step(8);
    step.seed = seed;
    disposal->observe(step);
    std::vector<std::int32_t> odd;
    for (std::int32_t i = 1; i < 65; i += 2) odd.push_back(i);
    const KeptLists lists({odd, odd, odd, odd});
    disposal->dispose(step, lists.kept());
    std::vector<float> all;
    for (std::int32_t r = 0; r < 4; ++r)
      for (std::int32_t i = 0; i < 32; ++i) all.push_back(step.kv.value(r, i)[0]);
    return all;
  };
  EXPECT_EQ(values(1), values(1));
  EXPECT_NE(values(1), values(2));
}

}  // namespace
}  // namespace kvlab::test
