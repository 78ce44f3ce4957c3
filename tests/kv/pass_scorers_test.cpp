#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

using Row = std::vector<double>;

// A pass with random queries, keys, hidden states and gradients over a layer's prompt; its chunks observe `spans` of it.
class RandomPass {
 public:
  RandomPass(const RandomLayer& layer, const std::vector<std::pair<std::int32_t, std::int32_t>>& spans, std::int32_t tokens_per_chunk)
      : model(layer.model), spans_(spans), count_(tokens_per_chunk) {
    const auto tokens = static_cast<std::size_t>(tokens_per_chunk) * spans.size();
    const bool data = layer.store.has_data();
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(layer.seqs.size()); ++s) {
      q.push_back(RandomLayer::normals(tokens * static_cast<std::size_t>(model.q_heads * model.head_dim), 51, s));
      k.push_back(RandomLayer::normals(tokens * static_cast<std::size_t>(model.kv_heads * model.head_dim), 52, s));
      hidden.push_back(RandomLayer::normals(tokens * static_cast<std::size_t>(model.hidden_dim), 53, s));
      gradient.push_back(RandomLayer::normals(tokens, 55, s));
      for (float& x : gradient.back()) x = std::abs(x);
      std::vector<PassQueries>& of_sequence = chunks_.emplace_back();
      for (std::size_t c = 0; c < spans.size(); ++c) {
        const auto begin = static_cast<std::int64_t>(c) * tokens_per_chunk;
        const Queries queries{data ? q.back().data() + begin * model.q_heads * model.head_dim : nullptr, tokens_per_chunk,
                              layer.seqs[0].prompt_tokens};
        of_sequence.push_back({queries, data ? k.back().data() + begin * model.kv_heads * model.head_dim : nullptr, spans[c].first,
                               spans[c].second, data ? hidden.back().data() + begin * model.hidden_dim : nullptr,
                               data ? gradient.back().data() + begin : nullptr});
      }
    }
    w_o = RandomLayer::normals(static_cast<std::size_t>(model.hidden_dim * model.q_heads * model.head_dim), 54, 0);
    for (const auto& of_sequence : chunks_) views_.emplace_back(of_sequence);
    observed.pass = views_;
    observed.w_o = data ? w_o.data() : nullptr;
  }

  // In double: what token t of chunk c pays to the tokens of its span, in one query head.
  Row paid(const RandomLayer& layer, std::int32_t s, std::int32_t c, std::int32_t t, std::int32_t q_head, std::int32_t sinks) const {
    const auto [begin, end] = nth(spans_, c);
    const std::int32_t at = c * count_ + t, d = model.head_dim, kv_head = q_head / model.group();
    const auto seq = static_cast<std::size_t>(s);
    const auto weight = [&](const std::vector<float>& keys, std::int32_t i) {
      const float *const query = &nth(q[seq], (at * model.q_heads + q_head) * d), *const key =
                                                                                      &nth(keys, (i * model.kv_heads + kv_head) * d);
      return std::exp(dot(query, key, d) / std::sqrt(d));
    };
    double total = 0;
    Row p;
    for (std::int32_t i = 0; i < std::min(sinks, begin); ++i) total += weight(layer.k[seq], i);
    for (std::int32_t i = begin; i < end; ++i) total += p.emplace_back(weight(layer.k[seq], i));
    for (std::int32_t i = c * count_; i <= at; ++i) total += weight(k[seq], i);
    for (double& x : p) x /= total;
    return p;
  }

  // |W_o^h v_i| over |hidden_t|, or times the gradient.
  double norm_factor(const RandomLayer& layer, std::int32_t s, std::int32_t c, std::int32_t t, std::int32_t q_head, std::int32_t i,
                     bool by_gradient) const {
    const std::int32_t d = model.head_dim, width = model.q_heads * d;
    const auto seq = static_cast<std::size_t>(s);
    double projected = 0, size = 0;
    for (std::int32_t o = 0; o < model.hidden_dim; ++o) {
      const double sum = dot(&nth(w_o, o * width + q_head * d), &nth(layer.v[seq], (i * model.kv_heads + q_head / model.group()) * d), d);
      projected += sum * sum;
      const double h = nth(hidden[seq], (c * count_ + t) * model.hidden_dim + o);
      size += h * h;
    }
    if (by_gradient) return std::sqrt(projected) * static_cast<double>(nth(gradient[seq], c * count_ + t));
    return std::sqrt(projected / size);
  }

  ModelShape model;
  std::vector<std::vector<float>> q, k, hidden, gradient;  // per sequence
  std::vector<float> w_o;
  Observed observed;

 private:
  std::vector<std::pair<std::int32_t, std::int32_t>> spans_;
  std::int32_t count_;
  std::vector<std::vector<PassQueries>> chunks_;
  std::vector<std::span<const PassQueries>> views_;
};

std::vector<float> scores_of(Scorer& scorer, RandomLayer& layer, const RandomPass& pass, std::int32_t window = 16) {
  LayerStep step = layer.prompt_step(window);
  step.in.pass = pass.observed.pass;
  step.in.w_o = pass.observed.w_o;
  std::vector<float> scores(static_cast<std::size_t>(step.kv.total()), -7);
  scorer.score(step, layer.ops.computes() ? scores.data() : nullptr);
  return scores;
}

TEST(Reconstruction, IsTheLargestAttentionOfTheRepetition) {
  for (const std::string weighs : {"{}", "{norms: true}", "{gradient: true}"})
    for (const std::int32_t group : {1, 3, 4, 8}) {
      RandomLayer layer({1, 2 * group, 2, 8, 12}, 2, 70, 5);
      const RandomPass pass(layer, {{0, 32}, {32, 64}, {64, 70}}, 20);
      auto scorer = make_part<ScorerRegistry>("reconstruction", weighs);
      const std::vector<float> scores = scores_of(*scorer, layer, pass);
      for (std::int32_t s = 0; s < 2; ++s)
        for (std::int32_t head = 0; head < 2; ++head) {
          Row wanted(70, 0.0);
          for (std::int32_t h = head * group; h < (head + 1) * group; ++h)
            for (std::int32_t c = 0; c < 3; ++c)
              for (std::int32_t t = 0; t < 20; ++t) {
                const Row p = pass.paid(layer, s, c, t, h, 4);
                for (std::size_t j = 0; j < p.size(); ++j) {
                  const std::int32_t i = 32 * c + static_cast<std::int32_t>(j);
                  double& best = nth(wanted, i);
                  best = std::max(best, p[j] * (weighs == "{}" ? 1 : pass.norm_factor(layer, s, c, t, h, i, weighs == "{gradient: true}")));
                }
              }
          for (std::size_t i = 0; i < 70; ++i) {
            const double got = scores[static_cast<std::size_t>(s * 2 + head) * 70 + i];
            EXPECT_NEAR(got, wanted[i], 1e-5 * wanted[i]) << weighs << " group " << group << " token " << i;
          }
        }
    }
}

TEST(Reconstruction, SinksStayUnlessAskedOtherwise) {
  EXPECT_EQ(make_part<ScorerRegistry>("reconstruction")->protects().sinks, 4);
  EXPECT_EQ(make_part<ScorerRegistry>("reconstruction", "{protect_sinks: false}")->protects().sinks, 0);
  const Needs plain = make_part<ScorerRegistry>("reconstruction")->needs(),
              plus = make_part<ScorerRegistry>("reconstruction", "{norms: true}")->needs();
  EXPECT_EQ(plain.pass, "reconstruct");
  EXPECT_FALSE(plain.pass_hidden || plain.output_weights);
  EXPECT_TRUE(plus.pass_hidden && plus.output_weights);
  const Needs gradient = make_part<ScorerRegistry>("reconstruction", "{gradient: true}")->needs();
  EXPECT_EQ(gradient.pass, "reconstruct_gradient");
  EXPECT_TRUE(gradient.output_weights && !gradient.cpu_only.empty() && !gradient.pass_hidden && plus.cpu_only.empty());
  EXPECT_THROW(make_part<ScorerRegistry>("reconstruction", "{gradient: true, norms: true}"), InputError);
  EXPECT_THROW(make_part<ScorerRegistry>("reconstruction", "{gradient: true, pass: repeat}"), InputError);
}

TEST(Lookahead, SumsPseudoQueriesAndTheWindowsThenPools) {
  for (const std::int32_t window : {0, 5}) {
    RandomLayer layer({1, 6, 2, 8, 12}, 2, 40, 6);
    const RandomPass pass(layer, {{0, 40}}, 8);
    auto scorer = make_part<ScorerRegistry>("lookahead", "{pool_tokens: 3, window_tokens: " + std::to_string(window) + "}");
    EXPECT_EQ(scorer->protects().recent, window);
    const std::vector<float> scores = scores_of(*scorer, layer, pass);
    for (std::int32_t s = 0; s < 2; ++s)
      for (std::int32_t head = 0; head < 2; ++head) {
        Row sum(40, 0.0);
        for (std::int32_t h = head * 3; h < head * 3 + 3; ++h)
          for (std::int32_t t = 0; t < 8; ++t) {
            const Row p = pass.paid(layer, s, 0, t, h, 0);
            for (std::size_t i = 0; i < 40; ++i) sum[i] += p[i] / 3;
          }
        for (std::int32_t t = 40 - window; t < 40; ++t) {
          const Row p = plain_row(layer, s, head, t);
          for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i];
        }
        const std::int32_t pooled = 40 - window;
        for (std::int32_t i = 0; i < pooled; ++i) {
          const double wanted = *std::max_element(sum.begin() + std::max(0, i - 1), sum.begin() + std::min(pooled, i + 2));
          EXPECT_NEAR(nth(scores, (s * 2 + head) * 40 + i), wanted, 1e-5) << window << " " << i;
        }
      }
  }
}

// Column sums of the window in one query head.
Row window_sums(const RandomLayer& layer, std::int32_t s, std::int32_t q_head, std::int32_t window) {
  const std::int32_t n = layer.seqs[0].new_tokens;
  Row sum(static_cast<std::size_t>(n), 0.0);
  for (std::int32_t t = n - window; t < n; ++t) {
    const Row p = plain_row_of_head(layer, s, q_head, t);
    for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i];
  }
  return sum;
}

void expect_pooled_mean(const RandomLayer& layer, const std::vector<float>& scores, std::int32_t s,
                        const std::vector<std::int32_t>& heads) {
  Row mean(30, 0.0);
  for (const std::int32_t h : heads) {
    const Row sums = window_sums(layer, s, h, 6);
    for (std::size_t i = 0; i < 30; ++i) mean[i] += sums[i] / static_cast<double>(heads.size());
  }
  for (std::int32_t head = 0; head < 2; ++head)
    for (std::int32_t i = 0; i < 24; ++i) {
      double wanted = 0;
      for (std::int32_t j = std::max(0, i - 1); j < std::min(24, i + 2); ++j) wanted += nth(mean, j) / 3;
      EXPECT_NEAR(nth(scores, (s * 2 + head) * 30 + i), wanted, 1e-5) << i;
    }
}

TEST(RetrievalHeadWindow, IsTheMeanOfTheChosenHeadsForAllKvHeads) {
  RandomLayer layer({1, 8, 2, 8, 12}, 2, 30, 7);
  const RandomPass none(layer, {}, 0);
  auto listed = make_part<ScorerRegistry>("retrieval_head_window", "{window_tokens: 6, pool_tokens: 3, heads: \"0.1 0.6 1.7\"}");
  const std::vector<float> of_listed = scores_of(*listed, layer, none);
  auto found = make_part<ScorerRegistry>("retrieval_head_window", "{window_tokens: 6, pool_tokens: 3, heads_per_layer: 3}");
  const std::vector<float> of_found = scores_of(*found, layer, none);
  for (std::int32_t s = 0; s < 2; ++s) {
    expect_pooled_mean(layer, of_listed, s, {1, 6});
    std::vector<std::int32_t> order(8);
    std::iota(order.begin(), order.end(), 0);
    const auto middle = [&](std::int32_t h) {
      const Row sums = window_sums(layer, s, h, 6);
      return std::accumulate(sums.begin() + 4, sums.begin() + 24, 0.0);
    };
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return middle(a) > middle(b); });
    expect_pooled_mean(layer, of_found, s, {order[0], order[1], order[2]});
  }
}

TEST(RetrievalHeadWindow, RefusesHeadsThatTheModelLacks) {
  EXPECT_NE(make_part<ScorerRegistry>("retrieval_head_window", "{heads: \"0.8\"}")->refuses({1, 8, 2, 8, 12}), "");
  EXPECT_NE(make_part<ScorerRegistry>("retrieval_head_window", "{heads: \"1.0\"}")->refuses({1, 8, 2, 8, 12}), "");
  EXPECT_EQ(make_part<ScorerRegistry>("retrieval_head_window", "{heads: \"0.7\"}")->refuses({1, 8, 2, 8, 12}), "");
  EXPECT_THROW(make_part<ScorerRegistry>("retrieval_head_window", "{heads: \"0\"}"), InputError);
}

TEST(RetrievalHeadWindow, RefusesHeadsOfDifferentLengthWithoutALogToo) {
  RandomLayer layer({1, 8, 2, 8, 12}, 1, 30, 7);
  const RandomPass none(layer, {}, 0);
  layer.store.shrink(1, 20);
  layer.ops.keep_log(false);
  auto scorer = make_part<ScorerRegistry>("retrieval_head_window", "{window_tokens: 6}");
  EXPECT_THROW(scores_of(*scorer, layer, none), InternalError);
}

TEST(PassScorers, LogsAreTheSameWithoutDataAndScoresTheSameTwice) {
  const std::pair<std::string, std::string> all[] = {{"reconstruction", "{}"},
                                                     {"reconstruction", "{norms: true}"},
                                                     {"reconstruction", "{gradient: true}"},
                                                     {"lookahead", "{}"},
                                                     {"lookahead", "{window_tokens: 0, pool: none}"},
                                                     {"retrieval_head_window", "{}"},
                                                     {"retrieval_head_window", "{heads: \"0.1 0.3\"}"}};
  for (const auto& [name, parameters] : all)
    for (const std::int32_t n : {0, 1, 63, 64, 65}) {
      const ModelShape model{1, 8, 2, 8, 12};
      RandomLayer with(model, 2, n, 3), again(model, 2, n, 3), without(model, 2, n, 3, 0, false);
      const RandomPass pass(with, {{0, n / 2}, {n / 2, n}}, 9), no_data(without, {{0, n / 2}, {n / 2, n}}, 9);
      const auto scorer = make_part<ScorerRegistry>(name, parameters);
      const std::vector<float> scores = scores_of(*scorer, with, pass);
      scores_of(*scorer, without, no_data);
      EXPECT_FALSE(with.ops.log().empty());
      EXPECT_EQ(with.ops.log(), without.ops.log()) << name << parameters << n;
      EXPECT_EQ(scores, scores_of(*scorer, again, pass)) << name << parameters << n;
      EXPECT_TRUE(std::all_of(scores.begin(), scores.end(), [](float x) { return x >= 0; })) << name << parameters << n;
    }
}

}  // namespace
}  // namespace kvlab::test
