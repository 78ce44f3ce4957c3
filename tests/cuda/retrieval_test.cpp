#include "policies/kv/selector/key_codes/key_codes.h"
#include "policies/kv/selector/sentences_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class RetrievalCuda : public CudaTest {};

TEST_F(RetrievalCuda, SplitSentencesEqualsCpuVersion) {
  const Ints closing{3, 7}, begin{0, 30, 5}, end{700, 40, 5};
  std::mt19937_64 random(1);
  Ints ids(700);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 10);
  const std::vector<const std::int32_t*> all_ids{ids.data(), ids.data(), ids.data()};
  for (const std::int32_t num_closing : {0, 2}) {
    RowArrays<std::int32_t> of({700, 40, 5}, 11);
    run_cpu(SplitSentences{3, 9, num_closing, closing.data(), all_ids.data(), begin.data(), end.data(), of.host()});
    run_cuda(SplitSentences{3, 9, num_closing, closing.data(), all_ids.data(), begin.data(), end.data(), of.device()}, cuda());
    EXPECT_EQ(of.device_contents(cuda()), of.contents());
  }
}

TEST_F(RetrievalCuda, SentenceMeansAndTakeSentencesEqualCpuVersions) {
  const std::int32_t d = 20;
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = d, .page_tokens = 8}, {5, 9, 300, 120}, 2);
  RowArrays<std::int32_t> of({3000, 3000});
  for (std::size_t s = 0; s < 2; ++s)
    for (std::size_t i = 0; i < 3000; ++i) of.row(s)[i] = static_cast<std::int32_t>(i / 13 * (s + 1));
  of.upload();
  const Longs listed_first{0, 0, 3, 103, 103};
  Ints listed{0, 2, 5};
  for (std::int32_t i = 0; i < 100; ++i) listed.push_back(2 * i);
  const DeviceBuffer<std::int32_t> device_listed(listed);
  const Ints dense_begin{0, 7, 210, 0}, dense_end{0, 9, 300, 120}, fresh{0, 1, 9, 3}, candidates{0, 5, 190, 120};
  const Longs n(candidates.begin(), candidates.end());
  RowArrays<float> means({0, 5 * d, 190 * d, 120 * d}, 7.0F);
  RowArrays<std::int32_t> token(n), sentence(n);
  SentenceMeans a;
  a.listed.first = listed_first.data();
  a.dense_begin = dense_begin.data(), a.dense_end = dense_end.data(), a.fresh = fresh.data();
  Ints count(4, -1), counted(4, -1);
  a.kv = rows.host(), a.sentence_of = of.host(), a.listed.unit = listed.data(), a.means = means.host(), a.token = token.host();
  a.sentence = sentence.host(), a.count = count.data();
  run_cpu(a);
  a.kv = rows.device(), a.sentence_of = of.device(), a.listed.unit = device_listed.data(), a.means = means.device();
  a.token = token.device(), a.sentence = sentence.device(), a.count = counted.data();
  run_cuda(a, cuda());
  EXPECT_EQ(counted, count);
  EXPECT_EQ(token.device_contents(cuda()), token.contents());
  EXPECT_EQ(sentence.device_contents(cuda()), sentence.contents());
  EXPECT_TRUE(all_near(means.device_contents(cuda()), means.contents(), 1e-6, 1e-6));

  Longs score_first(1, 0);
  for (const std::int32_t c : count) score_first.push_back(score_first.back() + c);
  std::vector<float> scores = random_elements<float>(score_first.back(), 3);
  for (float& x : scores) x = std::round(x * 2);
  const DeviceBuffer<float> device_scores(scores);
  const Longs index_first{0, 0, 4, 104, 224};
  Ints index(224);
  run_cpu(TakeSentences{4, score_first.data(), scores.data(), candidates.data(), token.host(), sentence.host(), index_first.data(),
                        index.data()});
  const DeviceBuffer<std::int32_t> device_index(224);
  run_cuda(TakeSentences{4, score_first.data(), device_scores.data(), candidates.data(), token.device(), sentence.device(),
                         index_first.data(), device_index.data()},
           cuda());
  EXPECT_EQ(device_index.to_host(cuda().stream()), index);
}

TEST_F(RetrievalCuda, KeyCodesEqualCpuVersions) {
  const std::int32_t d = 16, kv_heads = 2, group = 2;
  RowsFixture<f16> rows({.kv_heads = kv_heads, .group = group, .head_dim = d, .page_tokens = 8}, {5, 60, 90, 40}, 4);
  const QueriesFixture queries({1, 3}, {5, 60}, kv_heads * group, d, 5);
  const std::vector<float> turns = random_elements<float>(2 * d / 2, 9);
  for (const float* const frequencies : {static_cast<const float*>(nullptr), turns.data()}) {
    RowArrays<float> turned({4 * d, 12 * d});
    run_cpu(TurnQueries{2, kv_heads * group, d, 77, frequencies, queries.host(), turned.host()});
    run_cuda(TurnQueries{2, kv_heads * group, d, 77, frequencies, queries.device(), turned.device()}, cuda());
    EXPECT_TRUE(all_near(turned.device_contents(cuda()), turned.contents(), 1e-6, 1e-6));

    const Ints codes{0, 7, 40, 1};
    const Longs seeds{1, 2, 3, 4};
    RowArrays<float> gram(Longs(4, d * d)), root(Longs(4, d * d)), centers({0, 7 * d, 40 * d, d});
    for (std::size_t r = 0; r < 4; ++r) {
      const std::vector<float> q = random_elements<float>(30 * d, 60 + r);
      for (std::size_t i = 0; i < d * d; ++i)
        for (std::size_t t = 0; t < 30; ++t) gram.row(r)[i] += q[t * d + i / d] * q[t * d + i % d];
    }
    gram.upload();
    run_cpu(TrainCodes{rows.host(), frequencies, 3, codes.data(), seeds.data(), gram.host(), root.host(), centers.host()});
    run_cuda(TrainCodes{rows.device(), frequencies, 3, codes.data(), seeds.data(), gram.device(), root.device(), centers.device()}, cuda());
    EXPECT_TRUE(all_near(root.device_contents(cuda()), root.contents(), 1e-6, 1e-5));
    EXPECT_TRUE(all_near(centers.device_contents(cuda()), centers.contents(), 1e-5, 1e-5));  // means of keys

    root.upload(), centers.upload();
    const Ints from{0, 10, 0, 39}, to{0, 60, 90, 40};
    RowArrays<std::int32_t> code({0, 60, 90, 40});
    run_cpu(AssignCodes{rows.host(), frequencies, codes.data(), from.data(), to.data(), root.host(), centers.host(), code.host()});
    run_cuda(AssignCodes{rows.device(), frequencies, codes.data(), from.data(), to.data(), root.device(), centers.device(), code.device()},
             cuda());
    EXPECT_EQ(code.device_contents(cuda()), code.contents());

    const Ints begin{0, 12, 3, 0};
    const Longs first{0, 0, 48, 100, 140};
    std::vector<float> scores(140 * group);
    run_cpu(CodeScores{4, kv_heads, group, d, 2, queries.host(), codes.data(), centers.host(), code.host(), begin.data(), first.data(),
                       scores.data()});
    const DeviceBuffer<float> device_scores(140 * group);
    run_cuda(CodeScores{4, kv_heads, group, d, 2, queries.device(), codes.data(), centers.device(), code.device(), begin.data(),
                        first.data(), device_scores.data()},
             cuda());
    EXPECT_TRUE(all_near(device_scores.to_host(cuda().stream()), scores, 1e-5, 1e-5));
  }
}

}  // namespace
}  // namespace kvlab
