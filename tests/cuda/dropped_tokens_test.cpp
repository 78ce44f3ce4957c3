#include <algorithm>

#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/take_due_op.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/key_links_op.h"
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
  const auto [got, expected] = both<std::int32_t>(parts().total_dropped(), [&](bool gpu, std::int32_t* out) {
    const PartedRows rows = parts().at(gpu);
    return CopyUnits{rows.kv.num_rows, {rows.kept_first, rows.kept}, CopyUnits::Kind::kOthers, nullptr, rows.dropped_first, nullptr, out};
  });
  EXPECT_EQ(expected, parts().dropped);
  EXPECT_EQ(got, expected);
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
  for (int step = 0; step < 2; ++step) {
    Twice<std::int32_t> due(950);
    run_both([&](bool gpu) {
      const PartedRows p = parts().at(gpu);
      return TakeDue{p.kv, 1, 1, 0, 1, first.data(), due.at(gpu), true, p.dropped_first, p.dropped};
    });
    EXPECT_EQ(due.device(cuda()), due.host());
    EXPECT_EQ(rows.device_words(cuda()), rows.words);
  }
}

// Means are sums of doubles; thresholds pass between them with room to spare.
TEST_F(DroppedTokensCuda, MergeGate) {
  Twice<float> similarity = normals(parts().total_dropped(), 4, 0.4F);
  Ints drawn(parts().dropped.size());
  std::mt19937 random(5);
  for (std::int32_t& t : drawn) t = random() % 4 == 0 ? -1 : static_cast<std::int32_t>(random() % 100);
  const Ints line{3, 0, 2, 1};
  for (const bool running : {false, true})
    for (const bool head_mean : {false, true}) {
      std::vector<float> thresholds[2];
      for (auto& x : thresholds) x = {-2.0F, 0.5F, -2.0F, 0.1F, 0.7F};
      for (int step = 0; step < 2; ++step) {
        Twice<std::int32_t> target(drawn);
        run_both([&](bool gpu) {
          return MergeGate{parts().at(gpu), similarity.at(gpu), target.at(gpu), running, thresholds[gpu].data(), line.data(), 0.3F, 0.2F,
                           head_mean};
        });
        EXPECT_EQ(target.device(cuda()), target.host());
        EXPECT_TRUE(all_near(thresholds[1], thresholds[0], 1e-6, 1e-6));
      }
    }
}

TEST_F(CudaTest, LinksOfKeysEqualCpuVersion) {
  PartsFixture<f16> runs({.kv_heads = 2, .head_dim = 5, .page_tokens = 8}, {0, 1, 300, 70, 9, 40}, {0, 1, 60, 20, 0, 39}, 1);
  std::vector<float> scores = random_elements<float>(runs.rows.first.back(), 3);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = i % 17 == 0 ? kInf : std::max(scores[i], 0.0F);  // protected, and ties at 0
  for (const float min_cosine : {-2.0F, -0.5F, 0.0F, 0.9F}) {
    EXPECT_TRUE(equal(both<std::int32_t>(runs.total_dropped(), [&](bool gpu, std::int32_t* out) {
      return KeyLinks{runs.at(gpu), KeyLinks::Kind::kRuns, min_cosine, out};
    })));
    EXPECT_TRUE(equal(both(scores, [&](bool gpu, float* x) {
      return KeyLinks{{runs.rows.at(gpu)}, KeyLinks::Kind::kPivots, min_cosine, nullptr, x};
    })));
  }
}

TEST_F(CudaTest, CopiesOfDroppedTokensEqualCpuVersion) {
  PartsFixture<bf16> all({.kv_heads = 2, .head_dim = 5, .page_tokens = 8}, {0, 1, 300, 70}, {0, 1, 60, 20}, 2);
  std::vector<float> expected(static_cast<std::size_t>(all.total_dropped()) * 10);
  const DeviceBuffer<bf16> out(static_cast<std::int64_t>(expected.size()));
  Twice<std::int32_t> position(all.total_dropped());
  run_cpu(copy_dropped(all.host(), expected.data(), position.at(false)));
  run_cuda(copy_dropped(all.device(), out.data(), position.at(true)), cuda());
  EXPECT_EQ(floats(out.to_host(cuda().stream())), expected);
  EXPECT_EQ(position.device(cuda()), position.host());
}

}  // namespace
}  // namespace kvlab
