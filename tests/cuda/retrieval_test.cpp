#include "policies/kv/selector/key_codes/key_codes.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class RetrievalCuda : public CudaTest {};

TEST_F(RetrievalCuda, KeyCodesEqualCpuVersions) {
  const std::int32_t d = 16;
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = d, .page_tokens = 8}, {5, 60, 90, 40}, 4);
  const std::vector<float> turns = random_elements<float>(2 * d / 2, 9);
  for (const float* const frequencies : {static_cast<const float*>(nullptr), turns.data()}) {
    const Ints codes{0, 7, 40, 1};
    const Longs seeds{1, 2, 3, 4};
    RowArrays<float> gram(Longs(4, d * d)), root(Longs(4, d * d)), centers({0, 7 * d, 40 * d, d});
    for (std::size_t r = 0; r < 4; ++r) {
      const std::vector<float> q = random_elements<float>(30 * d, 60 + r);
      for (std::size_t i = 0; i < d * d; ++i)
        for (std::size_t t = 0; t < 30; ++t) gram.row(r)[i] += q[t * d + i / d] * q[t * d + i % d];
    }
    gram.upload();
    KeyCodes train{rows.host(), KeyCodes::Kind::kTrain, frequencies, codes.data(), root.host(), centers.host(),
                   3,           seeds.data(),           gram.host()};
    run_cpu(train);
    train.kv = rows.device(), train.root = root.device(), train.centers = centers.device(), train.gram = gram.device();
    run_cuda(train, cuda());
    EXPECT_TRUE(all_near(root.device_contents(cuda()), root.contents(), 1e-6, 1e-5));
    EXPECT_TRUE(all_near(centers.device_contents(cuda()), centers.contents(), 1e-5, 1e-5));  // means of keys

    root.upload(), centers.upload();
    const Ints from{0, 10, 0, 39}, to{0, 60, 90, 40};
    RowArrays<std::int32_t> code({0, 60, 90, 40});
    KeyCodes assign{.kv = rows.host(), .frequencies = frequencies, .codes = codes.data(), .root = root.host(), .centers = centers.host()};
    assign.from = from.data(), assign.to = to.data(), assign.code = code.host();
    run_cpu(assign);
    assign.kv = rows.device(), assign.root = root.device(), assign.centers = centers.device(), assign.code = code.device();
    run_cuda(assign, cuda());
    EXPECT_EQ(code.device_contents(cuda()), code.contents());
  }
}

}  // namespace
}  // namespace kvlab
