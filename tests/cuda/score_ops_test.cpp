#include "kernels/score/chunk_pool/chunk_pool.h"
#include "kernels/score/fill_scores_op.h"
#include "kernels/score/pool1d/pool1d.h"
#include "kernels/score/protect/protect.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/word_scores_op.h"
#include "kernels/select/block_max_op.h"
#include "kernels/select/gather_scores_op.h"
#include "policies/kv/scorer/standardize/standardize.h"
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

// The same sums in the same order: equal to the last bit.
TEST_F(ScoreOpsCuda, Pool1d) {
  const Longs first = prefix_sums(kLen);
  Ints len = kLen;
  len[3] = 20, len[4] = 0;
  const std::vector<float> scores = random_elements<float>(first.back(), 1);
  for (const std::int32_t width : {1, 3, 5, 63, 4001})
    for (const Pool1d::Kind kind : {Pool1d::Kind::kAvg, Pool1d::Kind::kMax})
      check(scores, 0, [&](auto&& op_on, bool, float* x) { op_on(Pool1d{kRows, first.data(), len.data(), x, width, kind}); });
}

TEST_F(ScoreOpsCuda, FillScores) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 5, 0, 20, 300, 7}, end{0, 1, 1, 33, 1023, 1025, 300, 1999};
  for (const bool outside : {false, true})
    check(random_elements<float>(first.back(), 3), 0, [&](auto&& op_on, bool, float* x) {
      op_on(FillScores{kRows, first.data(), begin.data(), end.data(), 0.3F, 1e-3F, x, outside});
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
  check(scores, 1e-6, [&](auto&& op_on, bool, float* x) { op_on(Standardize{4, 3, first.data(), x}); });
  check(scores, 1e-6, [&](auto&& op_on, bool, float* x) { op_on(Standardize{12, 1, first.data(), x}); });
  const std::vector<float> large(8, 3e38F);
  const Longs all{0, 8};
  check(large, 0, [&](auto&& op_on, bool, float* x) { op_on(Standardize{1, 1, all.data(), x}); });
}

TEST_F(ScoreOpsCuda, Protect) {
  RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 16}, kLen, 7);
  std::vector<float> scores = random_elements<float>(rows.first.back(), 8);
  scores[0] = std::numeric_limits<float>::quiet_NaN(), scores[40] = kInf, scores[2000] = -kInf;
  const Ints zero(4, 0), begin{0, 10, 700, 3000}, end{2, 40, 1500, 2900}, all(4, 5000);
  for (const auto& [from, to] : {std::pair{zero, end}, {begin, end}, {zero, all}, {all, all}})
    for (const bool inside : {false, true})
      for (const bool above_max : {false, true})
        check(scores, 0, [&, b = from.data(), e = to.data()](auto&& op_on, bool gpu, float* x) {
          op_on(Protect{gpu ? rows.device() : rows.host(), b, e, x, inside, above_max, 9.0F});
        });
}

TEST_F(ScoreOpsCuda, WordScores) {
  RowsFixture<bf16> rows({.head_dim = 4, .num_words = 4}, kLen, 9);
  std::uint32_t next = 0x3F800000U;
  for (std::uint32_t& word : rows.words) word = next += 77;
  rows.upload();
  std::vector<float> scores = random_elements<float>(rows.first.back(), 3);
  for (std::size_t i = 0; i < scores.size(); i += 5) scores[i] = kInf;
  for (const auto kind : {WordScores::Kind::kFloat, WordScores::Kind::kSum, WordScores::Kind::kMark})
    check(scores, 0, [&](auto&& op_on, bool gpu, float* x) { op_on(WordScores{gpu ? rows.device() : rows.host(), 1, kind, x, 3}); });
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

// Sums of at most 70 numbers in fp32, in another order.
TEST_F(ScoreOpsCuda, ChunkPool) {
  const Longs first = prefix_sums(kLen);
  const Ints begin{0, 0, 1, 3, 10, 1, 0, 1000}, len{0, 1, 1, 30, 150, 71, 300, 0};
  std::vector<float> scores = random_elements<float>(first.back(), 6);
  for (float& x : scores) x = std::abs(x);
  std::fill(scores.begin() + first[6], scores.begin() + first[7], 0.0F);  // no share of nothing
  using Kind = ChunkPool::Kind;
  for (const std::int32_t chunk : {5, 70})
    for (const Kind kind : {Kind::kMean, Kind::kMeanOfTopHalf, Kind::kShare})
      for (const std::int32_t* from : {begin.data(), static_cast<const std::int32_t*>(nullptr)})
        check(scores, 1e-6, [&](auto&& op_on, bool, float* x) { op_on(ChunkPool{kRows, first.data(), from, len.data(), x, chunk, kind}); });
}

}  // namespace
}  // namespace kvlab
