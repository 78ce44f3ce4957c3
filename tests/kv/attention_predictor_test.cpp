// AttentionPredictor: blocks chosen by the attention of earlier steps.
#include <gtest/gtest.h>

#include <deque>
#include <functional>

#include "policies/kv/recipe/trained_tensors.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/selector_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kBlock = 4, kSteps = 6, kSinks = 8, kRecent = 8, kTop = 16;
const char* const kParameters = "{block_tokens: 4, history_steps: 6, sink_tokens: 8, recent_tokens: 8, top_tokens: 16, dense_every: 5}";

using History = std::deque<std::vector<double>>;  // the oldest step first; [blocks] each
// The score of a block; blocks before `end` are predicted.
using Score = std::function<double(const History&, std::size_t block, std::size_t end)>;

double of_step(const std::vector<double>& step, std::size_t block) { return block < step.size() ? step[block] : 0; }

// Our sum without weights.
double decayed(const History& history, std::size_t block, std::size_t) {
  double sum = 0;
  for (const std::vector<double>& step : history) sum = 0.9 * sum + of_step(step, block);
  return sum;
}

// Attention of the query at position t to the tokens, by blocks: the largest of the row's heads and the block's tokens.
std::vector<double> pooled(const Decode& d, std::int32_t row, std::int32_t t, const std::vector<std::int32_t>& tokens, std::int32_t len) {
  std::vector<double> blocks(static_cast<std::size_t>((len + kBlock - 1) / kBlock), 0.0);
  const std::vector<float>& q = nth(d.q, row / d.model.kv_heads);
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    const float* query = q.data() + (t * d.model.q_heads + row % d.model.kv_heads * d.model.group() + h) * d.model.head_dim;
    const auto weight = [&](std::int32_t i) { return std::exp(d.dot(query, d.key(row, i)) / std::sqrt(d.model.head_dim)); };
    double sum = 0;
    for (const std::int32_t i : tokens) sum += weight(i);
    for (const std::int32_t i : tokens) nth(blocks, i / kBlock) = std::max(nth(blocks, i / kBlock), weight(i) / sum);
  }
  return blocks;
}

std::vector<std::int32_t> up_to(std::int32_t n) { return tokens_of({}, 1, n, 0, 0); }

// The tokens of a step of n tokens that is not dense: first and newest blocks, and the best between them.
std::vector<std::int32_t> expected_tokens(const History& history, std::int32_t n, const Score& score) {
  const std::int32_t end = std::min(n - kRecent, n - 1) / kBlock, begin = kSinks / kBlock;
  const std::int32_t keep = (kSinks + kRecent + kTop - kSinks - (n - end * kBlock)) / kBlock;
  std::vector<std::pair<double, std::int32_t>> ranked;
  for (std::int32_t b = begin; b < end; ++b)
    ranked.emplace_back(-score(history, static_cast<std::size_t>(b), static_cast<std::size_t>(end)), b);
  std::sort(ranked.begin(), ranked.end());
  EXPECT_GT(nth(ranked, keep).first - nth(ranked, keep - 1).first, 1e-7);
  std::vector<bool> is_chosen(static_cast<std::size_t>(end), false);
  for (std::int32_t i = 0; i < keep; ++i) nth(is_chosen, nth(ranked, i).second) = true;
  std::vector<std::int32_t> tokens;
  for (const std::int32_t i : up_to(n))
    if (i < kSinks || i >= end * kBlock || nth(is_chosen, i / kBlock)) tokens.push_back(i);
  return tokens;
}

// A prompt of 100 tokens and 12 steps, against the same by hand.
void expect_predicted(Selector& part, const Score& score) {
  constexpr std::int32_t kPrompt = 100;
  Decode d({4, 6, 2, 16, 32}, 1, kPrompt, 9);
  d.window_tokens = kSteps;
  d.prefill(part);
  std::vector<History> histories(2);
  for (std::int32_t r = 0; r < 2; ++r)
    for (std::int32_t t = kPrompt - kSteps; t < kPrompt; ++t) nth(histories, r).push_back(pooled(d, r, t, up_to(t + 1), kPrompt));
  for (std::int32_t step = 1; step <= 12; ++step) {
    const auto rows = d.decode(part);
    for (std::int32_t r = 0; r < 2; ++r) {
      SCOPED_TRACE("step " + std::to_string(step) + ", row " + std::to_string(r));
      History& history = nth(histories, r);
      const std::int32_t n = kPrompt + step;
      const std::vector<std::int32_t> expected = step % 5 == 0 ? up_to(n) : expected_tokens(history, n, score);
      EXPECT_EQ(nth(rows, r), expected);
      history.push_back(pooled(d, r, n - 1, expected, n));
      history.pop_front();
    }
  }
}

TEST(AttentionPredictor, WithoutWeightsRecentAttentionCounts) {
  expect_predicted(*make_part<SelectorRegistry>("attention_predictor", kParameters), decayed);
}

// A network that passes on one channel, of the block `shift` blocks later.
std::string file_of_network(std::size_t shift) {
  std::vector<float> w1(16 * 9), b1(16), w2(32 * 16 * 9), w3(32);
  w1[4 + shift] = 2.0F, w2[4] = 1.5F, w3[0] = 3.0F;
  w1[9 + 4] = 1.0F, b1[1] = -2.0F, w2[9 + 4] = 100.0F;  // never positive before it is rectified
  TrainedFile network;
  network.add("conv1.weight", {16, 1, 3, 3}, w1), network.add("conv1.bias", {16}, b1);
  network.add("conv2.weight", {32, 16, 3, 3}, w2), network.add("conv2.bias", {32}, std::vector<float>(32));
  network.add("conv3.weight", {1, 32, 1}, w3), network.add("conv3.bias", {1}, {0.5F});
  return network.file();
}

TEST(AttentionPredictor, NetworkReadsTheHistory) {
  for (const std::size_t shift : {0U, 1U}) {
    const auto part = make_part<SelectorRegistry>("attention_predictor", kParameters);
    part->set_weights(TrainedTensors::open(file_of_network(shift)));
    expect_predicted(*part, [&](const History& history, std::size_t block, std::size_t end) {
      double sum = 0;
      for (const std::vector<double>& h : history) sum += block + shift < end ? of_step(h, block + shift) : 0;
      return sum;
    });
    if (HasFailure()) return;
  }
}

TEST(AttentionPredictor, CostsWhatItComputesWithWeights) {
  expect_cost_is_replay(sample({}), recipe_of("{recipe: attention_predictor, budget_tokens: 64, weights: " + file_of_network(0) + "}"));
}

TEST(AttentionPredictor, HistoryIsCounted) {
  const auto part = make_part<SelectorRegistry>("attention_predictor");
  Decode d({4, 8, 2, 32, 64}, 1, 100, 5);
  d.append(100);
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {}).gpu, 2 * 64 * 7 * 4);  // 7 blocks of 16 tokens in each row
}

}  // namespace
}  // namespace kvlab::test
