#include <cstring>

#include "kernels/storage/quantize/quantize.h"
#include "tests/kv/disposal_fixture.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// One output element by plain loops in double: softmax over what a row held at positions `held`, and over one token for the others.
double reference(const RandomLayer& layer, std::int32_t s, std::int32_t q_head, std::int32_t c, const std::vector<std::int32_t>& held) {
  const ModelShape& m = layer.model;
  const auto row = static_cast<std::size_t>(s);
  const std::int32_t n = layer.seqs[row].end(), h = q_head / m.group();
  const float* const q = &nth(layer.q[row], ((n - 1) * m.q_heads + q_head) * m.head_dim);
  std::vector<std::vector<double>> v;
  std::vector<double> logits, mean_v(static_cast<std::size_t>(m.head_dim));
  double dropped = 0, logit_of_dropped = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i * m.kv_heads + h) * m.head_dim;
    const double z = dot(q, layer.k[row].data() + at, m.head_dim) / std::sqrt(m.head_dim);
    const std::vector<double> vi(layer.v[row].begin() + at, layer.v[row].begin() + at + m.head_dim);
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
    const Ints all = range(0, 33);
    drop_others(layer, *disposal, KeptLists({{0, 3, 7, 20, 32}, {1, 32}, all, {0, 31, 32}}));
    drop_others(layer, *disposal, KeptLists({{0, 2, 4}, {1}, all, {0, 1, 2}}));
    const std::vector<Ints> held = {{0, 7, 32}, {32}, all, {0, 31, 32}};
    const auto out = attend_with(layer, *disposal, 1);
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
  disposal->dispose(step, KeptLists({{0}, {0}, range(0, 33), {1, 2}}).kept());
  EXPECT_EQ(gpu(), 100 + 3 * (2 * 8 * 2 + 4));
  disposal->forget(0);
  EXPECT_EQ(gpu(), 100 + 1 * (2 * 8 * 2 + 4));
}

// Merging tokens of equal K and V changes no row's K and V, so attention loses their mass and nothing else.
TEST(MergeDisposals, IdenticalTokensChangeNothing) {
  const SmallLayer::Vectors k = {{1, 2}, {1, 2}, {1, 2}, {-1, 1}}, v = {{3, 4}, {3, 4}, {3, 4}, {1, 0}};
  for (const char* part : {"{merge_nearest: {}}", "{merge_nearest: {merges: values, weight: norm_share, threshold: fixed}}",
                           "{merge_nearest: {combine: mean}}", "{merge_nearest: {combine: pivot, weight: one, threshold: none}}",
                           "{merge_runs: {values_times_count: false}}", "{merge_runs: {order: runs_first, values_times_count: false}}"}) {
    Params p = Params::from_text(std::string("{disposal: ") + part + "}", "test");
    auto [name, parameters] = p.named("disposal", "drop", "");
    auto disposal = DisposalRegistry::make(name, parameters, "disposal");
    SmallLayer merged(k, v), plain({k[0], k[3]}, {v[0], v[3]});
    merged.dispose(*disposal, KeptLists({{0, 3}}));
    const auto a = attend_row0(merged, nullptr, {0.3F, -0.7F}), b = attend_row0(plain, nullptr, {0.3F, -0.7F});
    for (std::size_t c = 0; c < 2; ++c) EXPECT_NEAR(a[c], b[c], 1e-6) << part;
  }
}

// Two tokens share a key, one of them goes: its value survives in part, where deleting it loses all.
TEST(MergeDisposals, BeatDeletingWhereKeysAreAlike) {
  const SmallLayer::Vectors k = {{1, 0}, {1, 0}, {0, 1}}, v = {{0, 1}, {8, 1}, {0, 1}};
  const auto error_of = [&](const std::string& name) {
    SmallLayer full(k, v), cut(k, v);
    auto disposal = make_part<DisposalRegistry>(name);
    cut.dispose(*disposal, KeptLists({{0, 2}}));
    const auto a = attend_row0(full, nullptr, {0.4F, 0.4F}), b = attend_row0(cut, disposal.get(), {0.4F, 0.4F});
    return std::hypot(a[0] - b[0], a[1] - b[1]);
  };
  const float dropped = error_of("drop");
  EXPECT_NEAR(dropped, 8.0 / 3, 1e-5);
  for (const char* name : {"merge_nearest", "merge_position", "merge_runs", "compensation"})
    EXPECT_LT(error_of(name), dropped / 1.5F) << name;
}

TEST(MergeDisposals, KeptTokensKeepTheirPlacesAndCount) {
  for (const char* name : {"merge_nearest", "merge_position", "merge_runs"}) {
    RandomLayer layer({1, 8, 2, 8, 16}, 2, 65, 3);
    auto disposal = make_part<DisposalRegistry>(name);
    const KeptLists lists({{0, 3, 64}, {0, 1, 2, 40, 63, 64}, {5}, {}});
    LayerStep step = layer.prompt_step(8);
    disposal->dispose(step, lists.kept());
    for (std::int32_t r = 0; r < 4; ++r)
      for (std::int32_t i = 0; i < nth(lists.count, r); ++i)
        EXPECT_EQ(step.kv.position[step.kv.slot(r, i)], nth(lists.index, nth(lists.first, r) + i));
  }
}

// D2O: the prompt's mean similarity decides first; a sequence that left takes its threshold with it.
TEST(MergeNearest, ThresholdRunsOnAndIsForgotten) {
  auto disposal = make_part<DisposalRegistry>("merge_nearest", "{merges: values, combine: mean, weight: one}");
  const SmallLayer::Vectors k = {{1, 0}, {1, 0}, {0, 1}}, v = {{1, 0}, {3, 0}, {5, 0}};
  const auto first_value = [&] {
    SmallLayer layer(k, v);
    layer.dispose(*disposal, KeptLists({{0}}));
    return layer.value(0, 0)[0];
  };
  EXPECT_FLOAT_EQ(first_value(), 2);  // cosines 1 and 0, threshold 0.5: token 1 joins
  SmallLayer low({{1, 0}, {0.6F, 0.8F}}, {{1, 0}, {3, 0}});
  low.dispose(*disposal, KeptLists({{0}}));
  EXPECT_FLOAT_EQ(low.value(0, 0)[0], 2);  // 0.6 >= (0.5 + 0.6) / 2
  SmallLayer lower({{1, 0}, {0.5F, std::sqrt(0.75F)}}, {{1, 0}, {3, 0}});
  lower.dispose(*disposal, KeptLists({{0}}));
  EXPECT_FLOAT_EQ(lower.value(0, 0)[0], 1);  // 0.5 < (0.55 + 0.5) / 2
  disposal->forget(0);
  lower.dispose(*disposal, KeptLists({{0}}));
  EXPECT_FLOAT_EQ(first_value(), 2);
}

TEST(MergePosition, AveragesIntoTheNearestAnchor) {
  auto disposal = make_part<DisposalRegistry>("merge_position");
  SmallLayer layer({{0, 0}, {2, 0}, {4, 0}, {9, 0}}, {{0, 0}, {0, 2}, {0, 4}, {0, 9}});
  layer.dispose(*disposal, KeptLists({{0, 3}}));
  EXPECT_EQ(layer.key(0, 0), (std::vector<float>{1, 0}));
  EXPECT_EQ(layer.value(0, 0), (std::vector<float>{0, 1}));
  EXPECT_EQ(layer.key(0, 1), (std::vector<float>{6.5F, 0}));
}

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
  EXPECT_EQ(std::tuple(layer.value(0, 0)[0], layer.value(0, 1)[0], layer.value(0, 2)[0]), std::tuple(6, 6, 0));
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

// Encoded and decoded in two halves.
std::vector<float> through_codes(const std::vector<float>& x, std::int32_t bits) {
  GroupCodec codec;
  codec.bits = bits;
  std::vector<float> out(x.size());
  const std::size_t half = x.size() / 2;
  for (const std::size_t at : {std::size_t{0}, half}) {
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(group_bytes(codec, static_cast<std::int64_t>(half))));
    encode_group(codec, x.data() + at, static_cast<std::int64_t>(half), packed.data());
    decode_group(codec, packed.data(), static_cast<std::int64_t>(half), out.data() + at);
  }
  return out;
}

std::vector<float> copy(const float* x, std::int32_t n) { return {x, x + n}; }

TEST(LowPrecision, EncodesEachDroppedTokenOnce) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 5, 3, 1), before({1, 2, 1, 8, 16}, 1, 5, 3, 1);
  auto disposal = make_part<DisposalRegistry>("low_precision", "{bits: 2, balance: false}");
  LayerStep step = layer.prompt_step(1);
  const KvRows was = before.store.rows();
  disposal->observe(step);
  disposal->dispose(step, KeptLists({{1, 3, 4}}).kept());
  const auto first = copy(step.kv.key(0, 0), 8);
  EXPECT_EQ(first, through_codes(copy(was.key(0, 0), 8), 2));
  EXPECT_EQ(copy(step.kv.value(0, 2), 8), through_codes(copy(was.value(0, 2), 8), 2));
  for (const std::int32_t i : {1, 3, 4}) EXPECT_EQ(copy(step.kv.key(0, i), 8), copy(was.key(0, i), 8));
  disposal->dispose(step, KeptLists({{3, 4}}).kept());  // one more
  EXPECT_EQ(copy(step.kv.key(0, 0), 8), first);
  EXPECT_EQ(copy(step.kv.key(0, 1), 8), through_codes(copy(was.key(0, 1), 8), 2));
  const std::size_t calls = layer.ops.log().size();
  disposal->dispose(step, KeptLists({{3, 4}}).kept());
  for (std::size_t i = calls; i < layer.ops.log().size(); ++i) EXPECT_NE(layer.ops.log()[i].op, "quantize");
  EXPECT_EQ(step.kv.len[0], 5);
}

// No way back: a demoted token ranks last from then on, unless it is protected.
TEST(LowPrecision, DemotedTokensRankLast) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 4, 3, 1);
  auto disposal = make_part<DisposalRegistry>("low_precision");
  LayerStep step = layer.prompt_step(1);
  disposal->observe(step);
  disposal->dispose(step, KeptLists({{1, 3}}).kept());
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> scores = {9, 1, infinity, 2};
  disposal->rank(step, scores.data());
  EXPECT_EQ(scores, (std::vector<float>{-infinity, 1, infinity, 2}));
}

// Errors are within half a step of what balancing makes of each key: k b with b = sqrt(max |q| / max |k|), in halves of a head.
TEST(LowPrecision, BalancesKeysAgainstQueries) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    const ModelShape shape{1, group, 1, 8, 16};
    RandomLayer layer(shape, 1, 20, 3, 1), before(shape, 1, 20, 3, 1);
    auto disposal = make_part<DisposalRegistry>("low_precision", "{bits: 4}");
    LayerStep step = layer.prompt_step(1);
    disposal->observe(step);
    disposal->dispose(step, KeptLists({{19}}).kept());
    const KvRows was = before.store.rows();
    std::vector<double> b(8);
    for (std::size_t c = 0; c < 8; ++c) {
      double q = 0, k = 0;
      for (std::size_t i = 0; i < 20; ++i) k = std::max(k, std::fabs(double{layer.k[0][i * 8 + c]}));
      for (std::size_t i = 0; i < 20 * static_cast<std::size_t>(group); ++i) q = std::max(q, std::fabs(double{layer.q[0][i * 8 + c]}));
      b[c] = std::sqrt(q / k);
    }
    double total = 0;
    for (std::int32_t i = 0; i < 19; ++i)
      for (const std::size_t half : {std::size_t{0}, std::size_t{4}}) {
        double low = 1e9, high = -1e9;
        for (std::size_t c = half; c < half + 4; ++c) {
          const double x = double{was.key(0, i)[c]} * b[c];
          low = std::min(low, x), high = std::max(high, x);
        }
        for (std::size_t c = half; c < half + 4; ++c) {
          const double error = std::fabs(double{step.kv.key(0, i)[c]} - double{was.key(0, i)[c]}) * b[c];
          EXPECT_LE(error, 0.51 * (high - low) / 15 + 2e-3) << group;
          total += error;
        }
      }
    EXPECT_GT(total, 0.1);
  }
}

// The paper's figure: a third of the full cache with a fifth of the tokens in fp16, the others in 2 bits, head of 128, groups of 64.
TEST(LowPrecision, TakesTheMemoryThatThePaperSays) {
  RandomLayer layer({1, 1, 1, 128, 16}, 1, 1000, 3, 1, false);
  auto disposal = make_part<DisposalRegistry>("low_precision", "{balance: false}");
  const auto format = make_part<FormatRegistry>("native");
  std::vector<std::int32_t> fifth(200);
  LayerStep step = layer.prompt_step(1);
  disposal->observe(step);
  disposal->dispose(step, KeptLists({fifth}).shapes());
  const std::int64_t full = format->row_bytes(layer.model, 0, 1000);
  const std::int64_t held = disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {full}).gpu;
  EXPECT_EQ(held, 200 * 512 + 800 * 2 * (2 * (4 + 16)));
  EXPECT_NEAR(static_cast<double>(held) / static_cast<double>(full), 0.33, 0.01);
  std::vector<Segment> segments(1);
  segments[0].kv = step.kv;
  disposal->add_segments(step, segments);
  EXPECT_EQ(segments[0].read_bytes, held);
  disposal->forget(0);
  EXPECT_EQ(disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {full}).gpu, full);
}

}  // namespace
}  // namespace kvlab::test
