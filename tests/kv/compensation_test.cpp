#include <gtest/gtest.h>

#include <cmath>

#include "tests/kv/disposal_fixture.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

// One output element by plain loops in double: softmax over what a row held at positions `held`, and over one token for the others.
double reference(const RandomLayer& layer, std::int32_t s, std::int32_t q_head, std::int32_t c, const std::vector<std::int32_t>& held) {
  const ModelShape& m = layer.model;
  const auto row = static_cast<std::size_t>(s);
  const std::int32_t n = layer.seqs[row].end(), h = q_head / m.group();
  const auto kv = [&](const std::vector<float>& x, std::int32_t i, std::int32_t d) {
    return double{nth(x, (i * m.kv_heads + h) * m.head_dim + d)};
  };
  std::vector<std::vector<double>> v;
  std::vector<double> logits, mean_v(static_cast<std::size_t>(m.head_dim));
  double dropped = 0, logit_of_dropped = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    double z = 0;
    std::vector<double> vi;
    for (std::int32_t d = 0; d < m.head_dim; ++d) {
      z += double{nth(layer.q[row], ((n - 1) * m.q_heads + q_head) * m.head_dim + d)} * kv(layer.k[row], i, d) / std::sqrt(m.head_dim);
      vi.push_back(kv(layer.v[row], i, d));
    }
    if (std::find(held.begin(), held.end(), i) != held.end()) {
      logits.push_back(z), v.push_back(vi);
    } else {
      for (std::size_t d = 0; d < vi.size(); ++d) mean_v[d] += vi[d];
      logit_of_dropped += z, ++dropped;
    }
  }
  if (dropped > 0) {  // the logit of the mean key is the mean logit
    for (double& x : mean_v) x /= dropped;
    logits.push_back(logit_of_dropped / dropped + std::log(dropped)), v.push_back(mean_v);
  }
  return nth(attend_plain(logits, v), c);
}

// Two cuts one after the other, several sequences and heads, one row that loses nothing.
TEST(Compensation, AttendsToTheMeanOfAllThatWasDropped) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 33, 3);
    auto disposal = make_part<DisposalRegistry>("compensation");
    const std::vector<std::int32_t> all = tokens_of({}, 1, 33, 0, 0);
    const KeptLists first({{0, 3, 7, 20, 32}, {1, 32}, all, {0, 31, 32}}), second({{0, 2, 4}, {1}, all, {0, 1, 2}});
    const std::vector<std::vector<std::int32_t>> held = {{0, 7, 32}, {32}, all, {0, 31, 32}};
    for (const KeptLists* lists : {&first, &second}) {
      const Ops::Frame frame(layer.ops);
      LayerStep step = layer.prompt_step(1);
      disposal->observe(step);
      disposal->dispose(step, lists->kept());
      for (std::int32_t r = 0; r < 4; ++r) layer.store.shrink(r, nth(lists->count, r));
    }
    LayerStep step = layer.prompt_step(1);
    std::vector<Segment> segments(1);
    segments[0].kv = step.kv;
    disposal->add_segments(step, segments);
    ASSERT_EQ(segments.size(), 2U);
    std::vector<std::vector<float>> out(2, std::vector<float>(static_cast<std::size_t>(2 * group * 8)));
    float* outs[] = {out[0].data(), out[1].data()};
    layer.ops(Attend{segments.data(), 2, layer.window_queries.data(), outs});
    for (std::int32_t s = 0; s < 2; ++s)
      for (std::int32_t h = 0; h < 2 * group; ++h)
        for (std::int32_t c = 0; c < 8; ++c)
          EXPECT_NEAR(nth(nth(out, s), h * 8 + c), reference(layer, s, h, c, nth(held, s * 2 + h / group)), 1e-5) << group;
  }
}

// The compensation token represents dropped tokens with equal keys exactly; deleting them loses their share.
TEST(Compensation, IsExactForEqualKeys) {
  const SmallLayer::Vectors k = {{1, 0}, {1, 0}, {0, 1}}, v = {{4, 0}, {8, 0}, {0, 1}};
  SmallLayer full(k, v), cut(k, v), plain(k, v);
  auto compensation = make_part<DisposalRegistry>("compensation"), drop = make_part<DisposalRegistry>("drop");
  cut.dispose(*compensation, KeptLists({{2}}));
  plain.dispose(*drop, KeptLists({{2}}));
  const auto exact = attend_row0(full, nullptr, {0.5F, 1}), got = attend_row0(cut, compensation.get(), {0.5F, 1});
  EXPECT_NEAR(got[0], exact[0], 1e-6);
  EXPECT_NEAR(got[1], exact[1], 1e-6);
  EXPECT_GT(std::fabs(attend_row0(plain, nullptr, {0.5F, 1})[0] - exact[0]), 1);
}

TEST(Compensation, TakesTheMemoryOfOneTokenPerHead) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 33, 3);
  auto disposal = make_part<DisposalRegistry>("compensation");
  const auto format = make_part<FormatRegistry>("native");
  LayerStep step = layer.prompt_step(1);
  const auto gpu = [&] { return disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {100}).gpu; };
  disposal->observe(step);
  std::vector<Segment> segments(1);
  disposal->add_segments(step, segments);
  EXPECT_EQ(segments.size(), 1U);  // nothing was dropped yet
  EXPECT_EQ(gpu(), 100);
  disposal->dispose(step, KeptLists({{0}, {0}, tokens_of({}, 1, 33, 0, 0), {1, 2}}).kept());
  EXPECT_EQ(gpu(), 100 + 3 * (2 * 8 * 2 + 4));
  disposal->forget(0);
  EXPECT_EQ(gpu(), 100 + 1 * (2 * 8 * 2 + 4));
}

}  // namespace
}  // namespace kvlab::test
