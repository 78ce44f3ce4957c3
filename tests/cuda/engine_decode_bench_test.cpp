#include "bench/decode/decode_step.h"
#include "tests/cuda/engine_fixture.h"

namespace kvlab {
namespace {

using DecodeStepBench = CudaTest;

// Every kernel of the step is there, and the bytes are those of the shape.
TEST_F(DecodeStepBench, MeasuresATinyModel) {
  const ModelConfig c = tiny_config();
  const DecodeStepTimes t = time_decode_step(c, ElementType::kBf16, 2, 40, 1, cuda());
  EXPECT_GT(t.device_seconds, 0);
  EXPECT_GT(t.plain_seconds, 0);
  EXPECT_GT(t.step_seconds, 0);
  std::int64_t launches = 0;
  for (const DecodeStepTimes::Kernel& k : t.kernels) launches += k.launches;
  EXPECT_EQ(t.kernels.size(), 12U);
  EXPECT_EQ(launches, 3 + (2 * c.layers + 1) + 9 * c.layers);
  const std::int64_t layer = 64 * (2 * 256 + 2 * 128 + 3 * 96 + 2), weights = 2 * layer + 64 * (80 + 2 + 1);
  EXPECT_EQ(t.bytes, 2 * (weights + 2 * 2 * 2 * 128 * 40));
}

TEST(DecodeStepShape, IsThatOfLlama8b) {
  const ModelConfig c = llama_8b();
  const std::int64_t layer = std::int64_t{c.hidden_dim} * (2 * 4096 + 2 * 1024 + 3 * 14336);
  EXPECT_NEAR(static_cast<double>(32 * layer + 2 * std::int64_t{c.vocab_size} * c.hidden_dim), 8.03e9, 0.01e9);
}

}  // namespace
}  // namespace kvlab
