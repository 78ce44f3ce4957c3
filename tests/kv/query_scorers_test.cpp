#include <gtest/gtest.h>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

using Vec = std::vector<double>;

// Token i of head h of [tokens, heads, head_dim] data.
Vec at(const std::vector<float>& data, std::int32_t heads, std::int32_t d, std::int32_t i, std::int32_t h) {
  const float* x = data.data() + (i * heads + h) * d;
  return {x, x + d};
}

// Radians per position of pair i of d / 2 (Su et al. 2021; the scalings as transformers publish them), written out once more.
double plain_frequency(const RopeForm& rope, std::size_t i, std::size_t d) {
  const RopeScaling& s = rope.scaling;
  const double f = std::pow(rope.base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  if (s.kind == RopeScaling::Kind::kLinear) return f / s.factor;
  if (s.kind == RopeScaling::Kind::kLlama3) {
    const double turns = s.original_tokens * f / (2 * M_PI);
    const double smooth = std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
    return smooth * f + (1 - smooth) * f / s.factor;
  }
  if (s.kind == RopeScaling::Kind::kYarn) {
    const auto pair = [&](double turns) {
      return static_cast<double>(d) * std::log(s.original_tokens / (turns * 2 * M_PI)) / (2 * std::log(rope.base));
    };
    const double low = std::max(0.0, std::floor(pair(s.beta_fast))),
                 high = std::min(static_cast<double>(d) - 1, std::ceil(pair(s.beta_slow)));
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return ramp * f / s.factor + (1 - ramp) * f;
  }
  return f;
}

// The mean of the rotations of x to positions [begin, begin + count).
Vec mean_rotated(const Vec& x, const RopeForm& rope, std::int32_t begin, std::int32_t count) {
  if (rope.base == 0) return x;
  const std::size_t half = x.size() / 2;
  const double size = rope.scaling.attention_factor / count;
  Vec y(x.size(), 0.0);
  for (std::int32_t p = begin; p < begin + count; ++p)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = p * plain_frequency(rope, i, x.size());
      y[i] += (x[i] * std::cos(angle) - x[i + half] * std::sin(angle)) * size;
      y[i + half] += (x[i + half] * std::cos(angle) + x[i] * std::sin(angle)) * size;
    }
  return y;
}

// Without scaling and with three that change some frequencies of 8 channels a lot.
std::vector<RopeForm> rope_forms() {
  using Kind = RopeScaling::Kind;
  std::vector<RopeForm> forms{{0}, {100}};
  forms.push_back({100, {Kind::kLinear, 4}});
  forms.push_back({100, {.kind = Kind::kLlama3, .factor = 8, .original_tokens = 40, .low_freq_factor = 1, .high_freq_factor = 4}});
  forms.push_back({100, {.kind = Kind::kYarn, .factor = 4, .original_tokens = 40, .beta_fast = 4, .attention_factor = 1.3}});
  return forms;
}

struct Expected {
  const RandomLayer& layer;
  std::int32_t sinks, future;
  double divisor_less = 0;

  Vec mean_query(std::int32_t head) const {
    const std::int32_t n = layer.seqs[0].new_tokens, d = layer.model.head_dim;
    Vec mean(static_cast<std::size_t>(d), 0.0);
    for (std::int32_t t = sinks; t < n; ++t) {
      const Vec q = at(layer.q[0], layer.model.q_heads, d, t, head);
      for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += q[c] / (n - sinks);
    }
    return mean;
  }

  // Half the variance of q.k / sqrt(d): each centred query is carried on by itself.
  double spread(std::int32_t head, const Vec& k) const {
    const std::int32_t n = layer.seqs[0].new_tokens, d = layer.model.head_dim;
    const Vec mean = mean_query(head);
    double sum = 0;
    for (std::int32_t t = sinks; t < n; ++t) {
      Vec q = at(layer.q[0], layer.model.q_heads, d, t, head);
      for (std::size_t c = 0; c < q.size(); ++c) q[c] -= mean[c];
      const double z = dot(mean_rotated(q, layer.model.rope, n, future), k);
      sum += z * z / (n - sinks - divisor_less);
    }
    return sum / d / 2;
  }
};

TEST(ExpectedAttention, EqualsPlainLoops) {
  for (const RopeForm& rope : rope_forms()) {
    RandomLayer layer({1, 6, 2, 8, 16, 2, rope}, 1, 40, 21);
    auto scorer = make_part<ScorerRegistry>("expected_attention", "{future_tokens: 5, sinks_tokens: 3, epsilon: 0.25, divisor: n_minus_1}");
    LayerStep step = layer.prompt_step(0);
    step.in.pre_rope_queries = layer.step_queries;
    const std::vector<float> scores = scored(*scorer, step);
    const Expected expected{layer, 3, 5, 1};
    for (std::int32_t head = 0; head < 2; ++head) {
      Vec sum(40, 0.0);
      for (std::int32_t h = 3 * head; h < 3 * head + 3; ++h) {
        Vec z;
        for (std::int32_t i = 3; i < 40; ++i) {
          const Vec k = at(layer.k[0], 2, 8, i, head);
          z.push_back(dot(mean_rotated(expected.mean_query(h), rope, 40, 5), k) / std::sqrt(8.0) + expected.spread(h, k));
        }
        const Vec p = softmax(z);
        for (std::size_t i = 3; i < 40; ++i) sum[i] += p[i - 3] / 3;
      }
      for (std::int32_t i = 3; i < 40; ++i) {
        const Vec v = at(layer.v[0], 2, 8, i, head);
        const double wanted = (nth(sum, i) + 0.25) * std::sqrt(dot(v, v));
        EXPECT_NEAR(nth(scores, 40 * head + i), wanted, 2e-5 * wanted) << static_cast<int>(rope.scaling.kind) << " " << i;
      }
    }
  }
}

TEST(ValueLeverage, EqualsTheInverseWrittenOut) {
  RandomLayer layer({1, 4, 2, 2, 8, 2, 100}, 1, 20, 22);  // two channels: a 2 x 2 inverse
  auto scorer = make_part<ScorerRegistry>("value_leverage", "{future_tokens: 3, sinks_tokens: 2, tau: 2}");
  LayerStep step = layer.prompt_step(0);
  step.in.pre_rope_queries = layer.step_queries;
  const std::vector<float> scores = scored(*scorer, step);
  const Expected expected{layer, 2, 3};
  for (std::int32_t head = 0; head < 2; ++head) {
    Vec sum(20, 0.0);
    for (std::int32_t h = 2 * head; h < 2 * head + 2; ++h) {
      const Vec mean = mean_rotated(expected.mean_query(h), 100, 20, 3);
      Vec w(20, 0.0);
      double top = 0, a = 1, b = 0, c = 1;  // A = [a b; b c]
      for (std::int32_t i = 2; i < 20; ++i) {
        const Vec k = at(layer.k[0], 2, 2, i, head);
        nth(w, i) = std::exp(2 * dot(mean, k) / std::sqrt(dot(mean, mean) * dot(k, k)));
        top = std::max(top, nth(w, i));
      }
      for (std::int32_t i = 2; i < 20; ++i) {
        const Vec v = at(layer.v[0], 2, 2, i, head);
        double& weight = nth(w, i);
        weight /= top;
        a += (weight + 1e-6) * v[0] * v[0], b += (weight + 1e-6) * v[0] * v[1], c += (weight + 1e-6) * v[1] * v[1];
      }
      for (std::int32_t i = 2; i < 20; ++i) {
        const Vec v = at(layer.v[0], 2, 2, i, head);
        const double form = (c * v[0] * v[0] - 2 * b * v[0] * v[1] + a * v[1] * v[1]) / (a * c - b * b);
        nth(sum, i) += nth(w, i) * form / 2;
      }
    }
    for (std::int32_t i = 2; i < 20; ++i) EXPECT_NEAR(nth(scores, 20 * head + i), nth(sum, i), 1e-5) << i;
  }
}

// Plain loops over chunks, zeros appended where `padded`; then value norm, average of three and standard scores.
std::vector<Vec> plain_chunk_attention(const RandomLayer& layer, std::int32_t chunk, bool padded) {
  const std::int32_t n = layer.seqs[0].new_tokens, d = layer.model.head_dim, group = layer.model.group();
  std::vector<Vec> rows(2, Vec(static_cast<std::size_t>(n), 0.0));
  for (std::int32_t h = 0; h < layer.model.q_heads; ++h)
    for (std::int32_t begin = 0; begin < n; begin += chunk) {
      const std::int32_t count = std::min(chunk, n - begin), size = padded ? chunk : count;
      for (std::int32_t t = 0; t < size; ++t) {
        Vec z(static_cast<std::size_t>(size), 0.0);
        for (std::int32_t i = 0; i < count && t < count; ++i)
          nth(z, i) = dot(at(layer.q[0], layer.model.q_heads, d, begin + t, h), at(layer.k[0], 2, d, begin + i, h / group));
        const Vec p = softmax(z);
        for (std::int32_t i = 0; i < count; ++i) nth(nth(rows, h / group), begin + i) += nth(p, i) / group;
      }
    }
  for (std::int32_t head = 0; head < 2; ++head) {
    Vec& row = nth(rows, head);
    for (std::int32_t i = 0; i < n; ++i) {
      const Vec v = at(layer.v[0], 2, d, i, head);
      nth(row, i) *= std::sqrt(dot(v, v));
    }
    const Vec raw = row;
    for (std::size_t i = 0; i < raw.size(); ++i) row[i] = ((i > 0 ? raw[i - 1] : 0) + raw[i] + (i + 1 < raw.size() ? raw[i + 1] : 0)) / 3;
  }
  double mean = 0, squares = 0;
  for (const Vec& row : rows) mean += std::accumulate(row.begin(), row.end(), 0.0) / (2 * n);
  for (const Vec& row : rows)
    for (const double x : row) squares += (x - mean) * (x - mean);
  for (Vec& row : rows)
    for (double& x : row) x = (x - mean) / std::sqrt(squares / (2 * n - 1));
  return rows;
}

TEST(NoncausalChunk, EqualsPlainLoops) {
  for (const bool padded : {false, true}) {
    RandomLayer layer({1, 6, 2, 8, 16}, 1, 37, 23, 1);
    auto scorer = make_part<ScorerRegistry>("noncausal_chunk", padded ? "{chunk_tokens: 16, padded: true}" : "{chunk_tokens: 16}");
    scorer->bind(0);
    LayerStep step = layer.prompt_step(0);
    scorer->observe(step);
    const std::vector<float> scores = scored(*scorer, step);
    const std::vector<Vec> expected = plain_chunk_attention(layer, 16, padded);
    for (std::size_t i = 0; i < 74; ++i) EXPECT_NEAR(scores[i], expected[i / 37][i % 37], 2e-5) << padded << " " << i;
  }
}

TEST(NoncausalChunk, PrefillChunksThatEndOnItsChunksChangeNothing) {
  RandomLayer whole({1, 2, 2, 8, 16}, 1, 40, 23, 1);
  auto scorer = make_part<ScorerRegistry>("noncausal_chunk", "{chunk_tokens: 16}");
  scorer->bind(0);
  LayerStep step = whole.prompt_step(0);
  std::vector<float> at_once(80), in_two(80);
  scorer->observe(step);
  scorer->score(step, at_once.data());
  RandomLayer parts({1, 2, 2, 8, 16}, 1, 0, 23, 1);
  for (const std::int32_t begin : {0, 32}) {
    const std::int32_t count = begin == 0 ? 32 : 8;
    parts.store.append(0, whole.k[0].data() + begin * 16, whole.v[0].data() + begin * 16, count, begin);
    parts.seqs[0] = {0, begin, count, 40, -1};
    const std::vector<Queries> queries{{whole.q[0].data() + begin * 16, count, begin}};
    LayerStep part{parts.ops, parts.model, 0, parts.seqs, parts.store.rows(), {}, 7};
    part.in.step = queries;
    scorer->observe(part);
    if (begin > 0) scorer->score(part, in_two.data());
  }
  EXPECT_EQ(at_once, in_two);
}

TEST(QueryDirection, FindsTheDirectionAndItsSign) {
  RandomLayer layer({1, 4, 2, 8, 16}, 1, 30, 24);
  const Vec axis{0.6, 0, 0, -0.8, 0, 0, 0, 0};
  for (std::int32_t t = 0; t < 30; ++t)
    for (std::int32_t h = 0; h < 4; ++h)
      for (std::int32_t c = 0; c < 8; ++c) {
        float& q = nth(layer.q[0], (t * 4 + h) * 8 + c);
        q = 0.05F * q + static_cast<float>(nth(axis, c) * (t % 4 == 0 ? -5 : 5));
      }
  const std::vector<float> scores = scored(layer, "query_direction", "{window_tokens: 20}", 20);
  for (std::int32_t i = 0; i < 30; ++i) EXPECT_NEAR(nth(scores, 30 + i), dot(axis, at(layer.k[0], 2, 8, i, 1)), 0.05) << i;
}

TEST(Leverage, RareDirectionsScoreHigh) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 60, 25);
  for (std::int32_t i = 0; i < 60; ++i) nth(layer.k[0], i * 8 + 3) = i == 17 ? 9.0F : 0.0F;
  auto scorer = make_part<ScorerRegistry>("leverage", "{sketch_dim: 8}");
  LayerStep step = layer.prompt_step(0);
  const std::vector<const float*> keys{layer.k[0].data()};
  step.in.pre_rope_keys = keys;
  std::vector<float> scores = scored(*scorer, step);
  EXPECT_EQ(std::max_element(scores.begin(), scores.end()) - scores.begin(), 17);
  EXPECT_NEAR(std::accumulate(scores.begin(), scores.end(), 0.0), 0.0, 1e-4) << "standard scores";
}

TEST(Compactor, LeverageWeighsAsMuchAsIsDropped) {
  RandomLayer layer({1, 2, 2, 8, 16}, 1, 40, 26, 1);
  auto both = make_part<ScorerRegistry>("compactor", "{sketch_dim: 6}"), attention = make_part<ScorerRegistry>("noncausal_chunk"),
       leverage = make_part<ScorerRegistry>("leverage", "{sketch_dim: 6}");
  LayerStep step = layer.prompt_step(0);
  const std::vector<const float*> keys{layer.k[0].data()};
  step.in.pre_rope_keys = keys;
  std::vector<float> a(80), b(80), c(80);
  std::vector<std::int32_t> keep{30, 10};
  both->observe(step);
  both->score(step, a.data());
  both->refine(step, keep.data(), a.data());
  attention->score(step, b.data());
  leverage->score(step, c.data());
  for (std::size_t i = 0; i < 80; ++i) EXPECT_NEAR(a[i], b[i] + (i < 40 ? 0.25 : 0.75) * static_cast<double>(c[i]), 1e-5);
}

// After the cut rows are shorter than the prompt: decoded tokens leave the words of those that stay, and no part of a row is asked for that
// it does not hold.
TEST(Compactor, WithEndsLeftOutDecodesAfterTheCut) {
  RandomLayer layer({1, 4, 2, 8, 16, 2, 1e4}, 2, 40, 23, 1);
  auto scorer = make_part<ScorerRegistry>("compactor", "{ends: left_out, sketch_dim: 6}");
  scorer->bind(0);
  LayerStep prompt = layer.prompt_step(0);
  scorer->observe(prompt);
  for (std::int32_t r = 0; r < 4; ++r) layer.store.shrink(r, 14);
  for (std::int32_t s = 0; s < 2; ++s) {
    layer.store.append(s, layer.k[0].data(), layer.v[0].data(), 1, 40);
    nth(layer.seqs, s) = {s, 40, 1, 40};
  }
  const std::vector<Queries> queries(2, Queries{layer.q[0].data(), 1, 40});
  LayerStep decode{layer.ops, layer.model, 0, layer.seqs, layer.store.rows(), {}, 7};
  decode.in.step = queries;
  const auto all_words = [&] {
    std::vector<std::uint32_t> all;
    for (std::int32_t r = 0; r < 4; ++r)
      for (std::int32_t i = 0; i < decode.kv.len[r]; ++i) all.push_back(decode.kv.word(0, r, i));
    return all;
  };
  const std::vector<std::uint32_t> before = all_words();
  EXPECT_EQ(before.size(), 4U * 15U);
  scorer->observe(decode);
  EXPECT_EQ(all_words(), before);
  EXPECT_NE(before[8], 0U) << "the first token after the first eight has received attention";
}

}  // namespace
}  // namespace kvlab::test
