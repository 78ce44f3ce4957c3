#include "kernels/attention/attention_stats/attention_stats.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

struct Wanted {
  AttentionStats::Group group = AttentionStats::Group::kMean;
  bool sum = true, sum_sq = false, max = false, weigh = false;
};

class AttentionStatsCuda : public CudaTest {
 protected:
  template <class T>
  void check(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& counts,
             const Wanted& wanted, std::uint64_t seed, double tolerance) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", group " << shape.group << " of " << shape.head_dim << ", reduced by "
                                    << static_cast<int>(wanted.group) << (wanted.weigh ? ", weighed" : ""));
    RowsFixture<T> rows(shape, lengths, seed);
    std::vector<std::int32_t> last;  // some queries do not see the last tokens, those of the first sequence's first row
    for (std::size_t s = 0; s < counts.size(); ++s)
      last.push_back(lengths[s * static_cast<std::size_t>(shape.kv_heads)] * (s % 2 == 0 ? 1 : 3) - (s % 2 == 0 ? 2 : 0));
    const QueriesFixture queries(counts, last, shape.kv_heads * shape.group, shape.head_dim, seed + 10);
    const std::int64_t n = rows.first.back();
    std::vector<float> before = random_elements<float>(3 * n, seed + 20, 0.01F);
    for (float& x : before) x = std::abs(x);
    const auto [got, expected] = both(before, [&](bool gpu, float* out) {
      AttentionStats a;
      a.group = wanted.group, a.weigh_by_visible = wanted.weigh, a.visible_offset = 3;
      a.wants_sum = wanted.sum, a.wants_sum_sq = wanted.sum_sq, a.wants_max = wanted.max;
      a.kv = rows.at(gpu), a.queries = queries.at(gpu), a.sum = out, a.sum_sq = out + n, a.max = out + 2 * n;
      return a;
    });
    EXPECT_TRUE(all_near(got, expected, tolerance * 1e-2, tolerance));
  }
};

using Group = AttentionStats::Group;

// Queries keep 16 (bf16) or 22 bits (f16) and logits are sums of head_dim products: errors of some 1e-4 in an exponent. With f32 the
// order of sums is all that differs.
TEST_F(AttentionStatsCuda, SumsEqualCpuVersion) {
  check<bf16>({2, 4, 128}, {130, 1}, {35}, {}, 1, 5e-4);
  check<f16>({1, 3, 64, 32}, {127, 129, 128}, {12, 1, 0}, {Group::kSum}, 2, 2e-4);
  check<bf16>({1, 1, 256}, {65, 64}, {5, 5}, {}, 3, 5e-4);
  check<bf16>({2, 2, 64}, {40, 90}, {33}, {Group::kMean, true, false, false, true}, 4, 5e-4);
}

TEST_F(AttentionStatsCuda, GroupsReduceBeforeQueries) {
  for (const std::int32_t group : {1, 2, 3, 4, 7, 8, 16}) {
    check<f16>({1, group, 64}, {50}, {11}, {Group::kMax, true, true, true, group % 2 == 0}, 10, 2e-4);
    if (group % 3 == 1) check<bf16>({1, group, 64}, {50}, {6}, {Group::kMean, true, true, true}, 11, 5e-4);
  }
  check<f16>({1, 4, 128}, {140}, {20}, {Group::kSum, false, true, false}, 12, 2e-4);
  check<f16>({1, 4, 128}, {140}, {20}, {Group::kMax, false, false, true}, 13, 2e-4);
}

TEST_F(AttentionStatsCuda, AnyShapeWithoutTensorCores) {
  const FlatGrids flat;
  check<float>({2, 2, 64}, {33, 64, 1, 0}, {9, 4}, {Group::kMean, true, true, true, true}, 20, 1e-4);
  check<float>({1, 1, 33, 8}, {20}, {3}, {}, 21, 1e-4);
  check<bf16>({1, 3, 80, 5}, {37, 2}, {6, 6}, {Group::kMax, true, true, true}, 22, 1e-4);
  check<f16>({1, 20, 64}, {18}, {2}, {Group::kSum}, 23, 1e-4);
}

TEST_F(AttentionStatsCuda, NothingToDo) {
  check<bf16>({2, 2, 64}, {0, 0}, {4}, {}, 30, 0);
  check<bf16>({2, 2, 64}, {5, 5}, {0}, {}, 31, 1e-9);
}

}  // namespace
}  // namespace kvlab
