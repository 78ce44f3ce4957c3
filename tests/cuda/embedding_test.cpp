#include "kernels/model/layer/layer.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

class EmbeddingCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t width) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << width);
    constexpr std::int64_t kVocabulary = 11;
    const auto table = random_elements<T>(kVocabulary * width, 1);
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>((t * 7 + 3) % kVocabulary));
    std::vector<float> expected(static_cast<std::size_t>(tokens * width));
    run_cpu(Embedding{ids.data(), floats(table).data(), expected.data(), tokens, width});
    const DeviceBuffer<T> device_table(table), out(tokens * width);
    const DeviceBuffer<std::int32_t> device_ids(ids);
    run_cuda(Embedding{device_ids.data(), device_table.data(), out.data(), tokens, width, kElementType<T>}, cuda());
    EXPECT_TRUE(all_near(floats(out.to_host(cuda().stream())), expected, 0, 0));
  }
};

TEST_F(EmbeddingCuda, CopiesRows) {
  for (const std::int64_t width : {1, 7, 8, 64, 4096, 4104}) {
    check<bf16>(5, width);
    check<float>(2, width);
  }
  check<f16>(0, 64);
  check<f16>(13, 16);
}

}  // namespace
}  // namespace kvlab
