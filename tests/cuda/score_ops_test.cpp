#include "kernels/score/fill_scores/fill_scores.h"
#include "kernels/score/pool1d/pool1d.h"
#include "kernels/score/protect/protect.h"
#include "kernels/score/reduce_heads/reduce_heads.h"
#include "kernels/select/block_max/block_max.h"
#include "kernels/select/gather_scores/gather_scores.h"
#include "policies/kv/scorer/protect_span/protect_span.h"
#include "policies/kv/scorer/standardize/standardize.h"
#include "policies/kv/selector/sum_rows/sum_rows.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Operations that change scores of ragged rows in place: run(op_on, scores) calls run_cpu or run_cuda with scores in that memory.
class ScoreOpsCuda : public CudaTest {
 protected:
  template <class Run>
  void check(const std::vector<float>& scores, double tolerance, Run&& run) {
    std::vector<float> expected = scores;
    run([](const auto& op) { run_cpu(op); }, expected.data());
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> device(scores);
      run([&](const auto& op) { run_cuda(op, cuda()); }, device.data());
      return device.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(got, expected, tolerance, tolerance));
  }
};

const Ints kLen{0, 1, 2, 33, 1023, 1025, 300, 2000};  // chunks of 1,024
const auto kRows = static_cast<std::int32_t>(kLen.size());

// The same sums in the same order: equal to the last bit.
TEST_F(ScoreOpsCuda, Pool1d) {
  const Longs first = prefix_sums(kLen);
  Ints len = kLen;
  len[3] = 20, len[4] = 0;
  const std::vector<float> scores = random_elements<float>(first.back(), 1);
  for (const std::int32_t width : {1, 3, 5, 63, 4001})
    for (const Pool1d::Kind kind : {Pool1d::Kind::kAvg, Pool1d::Kind::kMax})
      check(scores, 0, [&](auto&& op_on, float* x) { op_on(Pool1d{kRows, first.data(), len.data(), x, width, kind}); });
}

TEST_F(ScoreOpsCuda, SumRows) {
  const Longs first = prefix_sums(kLen);
  const std::vector<float> scores = random_elements<float>(first.back(), 2);
  for (const std::int32_t per_pool : {1, 2, 4, 8})
    check(scores, 0, [&](auto&& op_on, float* x) { op_on(SumRows{kRows, per_pool, first.data(), x}); });
}

TEST_F(ScoreOpsCuda, FillScores) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 5, 0, 20, 300, 7}, end{0, 1, 1, 33, 1023, 1025, 300, 1999};
  check(random_elements<float>(first.back(), 3), 0, [&](auto&& op_on, float* x) {
    op_on(FillScores{kRows, first.data(), begin.data(), end.data(), 0.3F, 1e-3F, x});
  });
}

TEST_F(ScoreOpsCuda, GatherScores) {
  const Longs first = prefix_sums(kLen);
  Ints kept, index;
  for (const std::int32_t n : kLen) {
    const std::size_t before = index.size();
    for (std::int32_t i = n / 5; i < n; i += 1 + i % 3) index.push_back(i);
    kept.push_back(static_cast<std::int32_t>(index.size() - before));
  }
  const Longs index_first = prefix_sums(kept);
  const std::vector<float> scores = random_elements<float>(first.back(), 4);
  const DeviceBuffer<std::int32_t> device_index(index);
  std::vector<float> expected(index.size());
  run_cpu(GatherScores{kRows, first.data(), scores.data(), index_first.data(), index.data(), expected.data()});
  for (const bool in_place : {false, true}) {
    auto got = same_in_every_order([&] {
      const DeviceBuffer<float> device(scores), out(static_cast<std::int64_t>(index.size()));
      float* to = in_place ? device.data() : out.data();
      run_cuda(GatherScores{kRows, first.data(), device.data(), index_first.data(), device_index.data(), to}, cuda());
      return (in_place ? device : out).to_host(cuda().stream());
    });
    got.resize(index.size());
    EXPECT_EQ(got, expected);
  }
}

TEST_F(ScoreOpsCuda, BlockMax) {
  const Longs in_first = prefix_sums(kLen);
  const std::vector<float> in = random_elements<float>(in_first.back(), 5);
  const DeviceBuffer<float> device_in(in);
  Ints blocks;
  for (const std::int32_t n : kLen) blocks.push_back((n + 4) / 4 + 1);  // the last ones have nothing to look at
  const Longs first = prefix_sums(blocks);
  const auto total = static_cast<std::size_t>(first.back());
  std::vector<float> expected(total);
  run_cpu(BlockMax{kRows, 4, 1, 6, in_first.data(), in.data(), first.data(), expected.data()});
  const DeviceBuffer<float> out(first.back());
  run_cuda(BlockMax{kRows, 4, 1, 6, in_first.data(), device_in.data(), first.data(), out.data()}, cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), expected);
}

// Doubles, whose sums are in another order than the CPU's: a unit in the last place of the result.
TEST_F(ScoreOpsCuda, Standardize) {
  Ints len{0, 1, 2, 33, 4096, 4097, 0, 0, 9000, 1, 1, 1};
  const Longs first = prefix_sums(len);
  std::vector<float> scores = random_elements<float>(first.back(), 6, 1e4F);
  std::fill(scores.begin() + first[9], scores.end(), 0.7F);  // equal scores become 0
  check(scores, 1e-6, [&](auto&& op_on, float* x) { op_on(Standardize{4, 3, first.data(), x}); });
  check(scores, 1e-6, [&](auto&& op_on, float* x) { op_on(Standardize{12, 1, first.data(), x}); });
  const std::vector<float> large(8, 3e38F);
  const Longs all{0, 8};
  check(large, 0, [&](auto&& op_on, float* x) { op_on(Standardize{1, 1, all.data(), x}); });
}

TEST_F(ScoreOpsCuda, Protect) {
  RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 16}, kLen, 7);
  const Ints end{2, 40, 1500, 2900}, before{0, 10, 700, 3000};
  const std::vector<float> scores = random_elements<float>(rows.first.back(), 8);
  for (const bool fronts : {false, true}) {
    std::vector<float> expected = scores;
    run_cpu(Protect{rows.host(), 4, 64, end.data(), fronts ? before.data() : nullptr, expected.data(), 9.0F});
    const DeviceBuffer<float> got(scores);
    run_cuda(Protect{rows.device(), 4, 64, end.data(), fronts ? before.data() : nullptr, got.data(), 9.0F}, cuda());
    EXPECT_EQ(got.to_host(cuda().stream()), expected);
  }
  std::vector<float> expected = scores;
  run_cpu(ProtectSpan{rows.host(), 10, 1000, expected.data(), -1.0F});
  const DeviceBuffer<float> got(scores);
  run_cuda(ProtectSpan{rows.device(), 10, 1000, got.data(), -1.0F}, cuda());
  EXPECT_EQ(got.to_host(cuda().stream()), expected);
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
  for (const auto kind : {ReduceHeads::Kind::kSum, ReduceHeads::Kind::kMean, ReduceHeads::Kind::kRootOfSum}) {
    std::vector<float> expected = scores;
    run_cpu(ReduceHeads{rows.host(), kind, expected.data()});
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<float> device(scores);
      run_cuda(ReduceHeads{rows.device(), kind, device.data()}, cuda());
      return device.to_host(cuda().stream());
    });
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace kvlab
