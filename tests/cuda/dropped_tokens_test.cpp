#include <algorithm>
#include <limits>

#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/take_due_op.h"
#include "policies/kv/disposal/merge_gate_op.h"
#include "tests/cuda/parts_fixture.h"

namespace kvlab {
namespace {

class DroppedTokensCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    all_.emplace(RowsShape{.kv_heads = 2, .head_dim = 8, .page_tokens = 16, .num_words = 2}, Ints{0, 1, 1, 60, 1500, 700, 40, 40},
                 Ints{0, 1, 0, 30, 100, 699, 0, 40}, 1);
  }
  PartsFixture<bf16>& parts() { return *all_; }

 private:
  std::optional<PartsFixture<bf16>> all_;
};

TEST_F(DroppedTokensCuda, CopyUnitsOfOthers) {
  Ints expected(parts().dropped.size(), -1);
  const auto others = [](const PartedRows& rows, std::int32_t* out) {
    return CopyUnits{rows.kv.num_rows, {rows.kept_first, rows.kept}, CopyUnits::Kind::kOthers, nullptr, rows.dropped_first, nullptr, out};
  };
  run_cpu(others(parts().host(), expected.data()));
  EXPECT_EQ(expected, parts().dropped);
  const DeviceBuffer<std::int32_t> got(parts().total_dropped());
  run_cuda(others(parts().device(), got.data()), cuda());
  EXPECT_EQ(got.to_host(cuda().stream()), expected);
}

// Lists with too little room, and with more than is asked for.
TEST_F(DroppedTokensCuda, TakeDueOfDropped) {
  RowsFixture<bf16>& rows = parts().rows;
  const std::size_t slots = rows.position.size();
  std::mt19937 random(2);
  rows.for_each_token(
      [&](std::int32_t, std::int32_t, std::size_t slot) { rows.words[slots + slot] = static_cast<std::uint32_t>(random() % 6); });
  rows.upload();
  const Longs first{0, 3, 3, 4, 14, 900, 901, 950, 950};
  const PartedRows cpu = parts().host(), gpu = parts().device();
  for (int step = 0; step < 2; ++step) {
    Ints expected(950, -7);
    run_cpu(TakeDue{cpu.kv, 1, 1, 0, 1, first.data(), expected.data(), true, cpu.dropped_first, cpu.dropped});
    const DeviceBuffer<std::int32_t> got(950);
    run_cuda(TakeDue{gpu.kv, 1, 1, 0, 1, first.data(), got.data(), true, gpu.dropped_first, gpu.dropped}, cuda());
    EXPECT_EQ(got.to_host(cuda().stream()), expected);
    EXPECT_EQ(rows.device_words(cuda()), rows.words);
  }
}

// Means are sums of doubles; thresholds pass between them with room to spare.
TEST_F(DroppedTokensCuda, MergeGate) {
  const std::vector<float> similarity = random_elements<float>(parts().total_dropped(), 4, 0.4F);
  Ints target(parts().dropped.size());
  std::mt19937 random(5);
  for (std::int32_t& t : target) t = random() % 4 == 0 ? -1 : static_cast<std::int32_t>(random() % 100);
  const DeviceBuffer<float> device_similarity(similarity);
  const Ints line{3, 0, 2, 1};
  for (const bool running : {false, true}) {
    for (const bool head_mean : {false, true}) {
      std::vector<float> expected_thresholds{-2.0F, 0.5F, -2.0F, 0.1F, 0.7F}, thresholds = expected_thresholds;
      for (int step = 0; step < 2; ++step) {
        Ints expected = target;
        run_cpu(MergeGate{parts().host(), similarity.data(), expected.data(), running, expected_thresholds.data(), line.data(), 0.3F, 0.2F,
                          head_mean});
        const DeviceBuffer<std::int32_t> got(target);
        run_cuda(MergeGate{parts().device(), device_similarity.data(), got.data(), running, thresholds.data(), line.data(), 0.3F, 0.2F,
                           head_mean},
                 cuda());
        EXPECT_EQ(got.to_host(cuda().stream()), expected);
        EXPECT_TRUE(all_near(thresholds, expected_thresholds, 1e-6, 1e-6));
      }
    }
  }
}

}  // namespace
}  // namespace kvlab
