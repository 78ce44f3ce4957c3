#include <gtest/gtest.h>

#include "engine/model/config.h"

namespace kvlab {
namespace {

// Two layers of 3 query heads on one KV head of 4 channels.
TEST(ModelWork, CountsEveryProductOfAForwardPass) {
  ModelConfig c;
  c.layers = 2, c.hidden_dim = 8, c.intermediate_dim = 10, c.q_heads = 3, c.kv_heads = 1, c.head_dim = 4, c.vocab_size = 7;
  const ModelWork work(c);
  EXPECT_EQ(work.weights, 2 * (8 * 12 + 2 * 8 * 4 + 12 * 8 + 3 * 8 * 10));  // q, k and v, o, gate and up and down
  EXPECT_EQ(std::tuple(work.head_weights, work.kv_width), std::tuple(56, 4));
  double flops = 0;
  for (int token = 5; token < 9; ++token) {
    flops += 2 * work.weights;
    for (int seen = 0; seen <= token; ++seen) flops += 2 * 3 * (2 * 4 + 2 * 4);  // layers x heads x (scores, sum of values)
  }
  EXPECT_EQ(work.forward_flops(5, 9), flops);
}

}  // namespace
}  // namespace kvlab
