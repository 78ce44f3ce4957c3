#include "kernels/score/pool1d_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Operations that change scores of ragged rows in place: run(op_on, gpu, scores) calls run_cpu or run_cuda with scores in that memory.
class ScoreOpsCuda : public CudaTest {
 protected:
  template <class Run>
  void check(const std::vector<float>& scores, double tolerance, Run&& run) {
    std::vector<float> expected = scores;
    run([](const auto& op) { run_cpu(op); }, false, expected.data());
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> device(scores);
      run([&](const auto& op) { run_cuda(op, cuda()); }, true, device.data());
      return device.to_host(cuda().stream());
    });
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])) ||
                  std::abs(got[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i])))
          << "element " << i << " is " << got[i] << ", expected " << expected[i];
  }
};

const Ints kLen{0, 1, 2, 33, 1023, 1025, 300, 2000};  // chunks of 1,024
const auto kRows = static_cast<std::int32_t>(kLen.size());

TEST_F(ScoreOpsCuda, ScoreMapFills) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 5, 0, 20, 300, 7}, end{0, 1, 1, 33, 1023, 1025, 300, 1999};
  for (const bool outside : {false, true})
    check(random_elements<float>(first.back(), 3), 0, [&](auto&& op_on, bool, float* x) {
      op_on(ScoreMap::fill(kRows, first.data(), begin.data(), end.data(), 0.3F, 1e-3F, x, outside));
    });
}

TEST_F(ScoreOpsCuda, ScoreMapGathers) {
  const Longs first = prefix_sums(kLen);
  Ints kept, index;
  for (const std::int32_t n : kLen) {
    const std::size_t before = index.size();
    for (std::int32_t i = n / 5; i < n; i += 1 + i % 3) index.push_back(i);
    kept.push_back(static_cast<std::int32_t>(index.size() - before));
  }
  const Longs index_first = prefix_sums(kept);
  const std::vector<float> scores = random_elements<float>(first.back(), 4);
  const DeviceBuffer<float> device(scores), out(index_first.back());
  const DeviceBuffer<std::int32_t> device_index(index);
  std::vector<float> expected(index.size());
  ScoreMap gather{kRows, index_first.data(), ScoreMap::Kind::kGather, scores.data()};
  gather.start = first.data(), gather.index = index.data(), gather.out = expected.data();
  run_cpu(gather);
  gather.a = device.data(), gather.index = device_index.data(), gather.out = out.data();
  run_cuda(gather, cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), expected);
}

TEST_F(ScoreOpsCuda, BlockMaxima) {
  const Longs in_first = prefix_sums(kLen);
  const std::vector<float> in = random_elements<float>(in_first.back(), 5);
  const DeviceBuffer<float> device_in(in);
  Ints blocks;
  for (const std::int32_t n : kLen) blocks.push_back((n + 4) / 4 + 1);  // the last ones have nothing to look at
  const Longs first = prefix_sums(blocks);
  const auto total = static_cast<std::size_t>(first.back());
  std::vector<float> expected(total);
  run_cpu(Pool1d{kRows, first.data(), nullptr, nullptr, expected.data(), 6, Pool1d::Kind::kBlockMax, false, 1, 4, 1, in_first.data(),
                 in.data()});
  const DeviceBuffer<float> out(first.back());
  run_cuda(Pool1d{kRows, first.data(), nullptr, nullptr, out.data(), 6, Pool1d::Kind::kBlockMax, false, 1, 4, 1, in_first.data(),
                  device_in.data()},
           cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), expected);
}

// Heads that hold the same tokens, and heads that do not. The sums are in the CPU's order.
TEST_F(ScoreOpsCuda, ReduceHeads) {
  RowsFixture<f16> rows({.kv_heads = 4, .head_dim = 8, .page_tokens = 16}, {700, 650, 0, 1030, 90, 90, 90, 90}, 9);
  const KvRows kv = rows.host();
  for (std::int32_t i = 0; i < 90; ++i)
    for (std::int32_t r = 5; r < 8; ++r)
      rows.position[static_cast<std::size_t>(kv.slot(r, i))] = rows.position[static_cast<std::size_t>(kv.slot(4, i))];
  rows.upload();
  std::vector<float> scores = random_elements<float>(rows.first.back(), 10);
  for (float& x : scores) x = std::abs(x);
  for (const auto kind : {ReduceHeads::Kind::kSum, ReduceHeads::Kind::kMean, ReduceHeads::Kind::kRootOfSum})
    for (const bool by_position : {true, false})
      check(scores, 0, [&](auto&& op_on, bool gpu, float* x) {
        op_on(ReduceHeads{gpu ? rows.device() : rows.host(), kind, x, by_position});
      });
}

}  // namespace
}  // namespace kvlab
