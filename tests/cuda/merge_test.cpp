#include <algorithm>
#include <cmath>

#include "kernels/merge/merge_into/merge_into.h"
#include "kernels/merge/nearest_kept/nearest_kept.h"
#include "kernels/storage/channel_stats_op.h"
#include "policies/kv/disposal/slerp_pairs_op.h"
#include "tests/cuda/parts_fixture.h"

namespace kvlab {
namespace {

class MergeCuda : public CudaTest {
 protected:
  // Values of slots that rows own; the others must be what they were, NaN.
  template <class T>
  void expect_pool(RowsFixture<T>& rows, const std::vector<float>& got, const std::vector<float>& expected, double tolerance) {
    const auto d = static_cast<std::size_t>(rows.host().head_dim);
    std::vector<float> mine, theirs;
    std::vector<bool> owned(rows.position.size(), false);
    rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      owned[slot] = true;
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) mine.push_back(got[c]), theirs.push_back(expected[c]);
    });
    EXPECT_TRUE(all_near(mine, theirs, tolerance, tolerance));
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!owned[i / d]) {
        EXPECT_TRUE(std::isnan(got[i]));
      }
    }
  }

  // Both versions begin with the same keys and values; op(gpu).
  template <class T, class Op>
  void check(PartsFixture<T>& parts, double tolerance, Op&& op) {
    const std::vector<float> k = parts.rows.k, v = parts.rows.v;
    run_cpu(op(false));
    const std::vector<float> expected_k = parts.rows.k, expected_v = parts.rows.v;
    parts.rows.k = k, parts.rows.v = v;
    for (const auto order : {emulated::Order::kForward, emulated::Order::kShuffled}) {
      emulated::set_order(order);
      parts.rows.upload();
      run_cuda(op(true), cuda());
      expect_pool(parts.rows, parts.rows.device_keys(cuda()), expected_k, tolerance);
      expect_pool(parts.rows, parts.rows.device_values(cuda()), expected_v, tolerance);
    }
    emulated::set_order(emulated::Order::kForward);
    parts.rows.upload();
  }

  template <class T>
  void check_merge_into(std::int32_t head_dim, double tolerance) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
    PartsFixture<T> parts({.kv_heads = 2, .head_dim = head_dim, .page_tokens = 16}, {0, 1, 1, 60, 150, 40}, {0, 1, 0, 3, 20, 40}, 1);
    Ints places(parts.dropped.size(), -1);
    std::mt19937 random(2);
    for (std::size_t r = 0; r < 6; ++r) {
      const auto kept = static_cast<std::uint32_t>(parts.kept_first[r + 1] - parts.kept_first[r]);
      for (std::int64_t i = parts.dropped_first[r]; i < parts.dropped_first[r + 1] && kept > 0; ++i)
        places[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random() % 3 == 0 ? 0 : random() % (kept + 1)) - 1;
    }
    for (std::size_t i = 0; i < places.size(); i += 3) places[i] = std::max(places[i], 0) * (places[i] >= -1 && i > 1 ? 1 : 0);
    std::vector<float> cosine = random_elements<float>(parts.total_dropped(), 3, 0.5F);
    for (float& s : cosine) s = std::clamp(s, -1.0F, 1.0F);
    for (std::size_t i = 0; i < static_cast<std::size_t>(parts.dropped_first[3]); ++i) places[i] = -1;  // no kept token there
    std::vector<float> masses = random_elements<float>(parts.rows.first.back(), 6);
    for (float& m : masses) m = std::max(m, 0.0F);
    Twice<std::int32_t> target(places);
    Twice<float> similarity(cosine), mass(masses);
    using Combine = MergeInto::Combine;
    using Weight = MergeInto::Weight;
    const auto merge = [&](Combine combine, Weight weight, bool keys, bool times) {
      SCOPED_TRACE(testing::Message() << "combine " << static_cast<int>(combine) << ", weight " << static_cast<int>(weight));
      const bool by_mass = weight == Weight::kMassShare;
      check(parts, tolerance, [&](bool gpu) {
        return MergeInto{parts.at(gpu), target.at(gpu), by_mass ? nullptr : similarity.at(gpu), combine, weight, 9.0F,
                         keys,          times,          by_mass ? mass.at(gpu) : nullptr};
      });
    };
    merge(Combine::kMean, Weight::kOne, true, false);
    merge(Combine::kPivot, Weight::kSimilarity, true, true);
    merge(Combine::kWeightedMean, Weight::kSoftmax, false, false);
    merge(Combine::kWeightedMean, Weight::kNormShare, true, false);
    merge(Combine::kMean, Weight::kGaussian, true, true);
    merge(Combine::kWeightedMean, Weight::kMassShare, true, false);
  }
};

// One rounding to the element type of numbers up to about 10 (times the count where values are scaled by it).
TEST_F(MergeCuda, MergeInto) {
  check_merge_into<float>(7, 1e-5);
  check_merge_into<f16>(64, 0x1p-10);
  check_merge_into<bf16>(136, 0x1p-7);
}

// Sums of at most 256 numbers in fp32, then doubles.
TEST_F(MergeCuda, MeanDropped) {
  PartsFixture<bf16> parts({.kv_heads = 2, .head_dim = 72, .page_tokens = 16}, {0, 1, 1, 60, 600, 90}, {0, 1, 0, 30, 40, 90}, 6);
  const Ints line{5, 4, 3, 2, 1, 0}, before{0, 3, 0, 1000, 7, 8};
  Twice<float> k = normals(6 * 72, 7), v = normals(6 * 72, 8);
  run_both([&](bool gpu) {
    const PartedRows rows = parts.at(gpu);
    const ListedTokens dropped{rows.kv, rows.dropped_first, rows.dropped};
    return ChannelStats{rows.kv,       {},       ChannelStats::Kind::kRunningMean, dropped, nullptr, line.data(), {}, k.at(gpu),
                        before.data(), v.at(gpu)};
  });
  for (Twice<float>* mean : {&k, &v}) EXPECT_TRUE(all_near(mean->device(cuda()), mean->host(), 1e-6, 1e-5));
}

// Vectors of norm 0, equal and opposite ones. Doubles; one rounding to the element type.
TEST_F(MergeCuda, SlerpPairs) {
  const Ints len{0, 1, 70, 130}, begin{0, 0, 3, 0}, end{0, 1, 70, 129}, retain{0, 0, 10, 200};
  RowsFixture<f16> a({.kv_heads = 2, .head_dim = 40, .page_tokens = 16}, len, 9),
      b({.kv_heads = 2, .head_dim = 40, .page_tokens = 16}, len, 10);
  for (std::size_t c = 0; c < 40; ++c) {
    const auto at = [&](RowsFixture<f16>& rows, std::int32_t token) -> float& {
      return rows.v[static_cast<std::size_t>(rows.host().slot(2, token)) * 40 + c];
    };
    at(a, 5) = 0, at(b, 6) = 0, at(a, 7) = at(b, 7), at(a, 8) = -at(b, 8), at(a, 9) = at(b, 9) = 0;
  }
  a.upload(), b.upload();
  for (const bool values : {false, true}) {
    for (const float t : {0.6F, 0.2F}) {
      const std::vector<float> ak = a.k, av = a.v, bk = b.k, bv = b.v;
      run_cpu(SlerpPairs{a.host(), b.host(), begin.data(), end.data(), retain.data(), values, t});
      const std::vector<float> expected_a = values ? a.v : a.k, expected_b = values ? b.v : b.k;
      a.k = ak, a.v = av, b.k = bk, b.v = bv;
      a.upload(), b.upload();
      run_cuda(SlerpPairs{a.device(), b.device(), begin.data(), end.data(), retain.data(), values, t}, cuda());
      expect_pool(a, values ? a.device_values(cuda()) : a.device_keys(cuda()), expected_a, 0x1p-10);
      expect_pool(b, values ? b.device_values(cuda()) : b.device_keys(cuda()), expected_b, 0x1p-10);
    }
  }
}

class NearestKeptCuda : public CudaTest {
 protected:
  // Cosines of at most 256 products in fp32 in another order than the CPU's; the nearest of random keys is nearer than the others by more.
  template <class T>
  void check(std::int32_t head_dim, const Ints& len, const Ints& kept) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim);
    PartsFixture<T> parts({.kv_heads = 1, .head_dim = head_dim, .page_tokens = 16}, len, kept, 1);
    RowsFixture<T>& rows = parts.rows;
    const auto d = static_cast<std::size_t>(head_dim);
    const auto key = [&](std::int32_t row, std::int32_t token) {
      return rows.k.data() + static_cast<std::size_t>(rows.host().slot(row, token)) * d;
    };
    const auto last = static_cast<std::int32_t>(len.size()) - 1;
    const std::int32_t* const of_last = parts.dropped.data() + parts.dropped_first[static_cast<std::size_t>(last)];
    std::fill_n(key(last, of_last[0]), d, 0.0F);  // no direction: cosine 0 with all
    std::fill_n(key(last, parts.kept[static_cast<std::size_t>(parts.kept_first[static_cast<std::size_t>(last)])]), d, 0.0F);
    const std::int32_t* const stay = parts.kept.data() + parts.kept_first[static_cast<std::size_t>(last)];
    std::copy_n(key(last, stay[2]), d, key(last, stay[5]));  // equal keys: the lower place
    std::copy_n(key(last, stay[2]), d, key(last, of_last[1]));
    rows.upload();
    Twice<float> similarity(parts.total_dropped());
    const auto targets = both<std::int32_t>(parts.total_dropped(), [&](bool gpu, std::int32_t* target) {
      return NearestKept{parts.at(gpu), target, similarity.at(gpu)};
    });
    EXPECT_TRUE(equal(targets));
    EXPECT_TRUE(all_near(similarity.device(cuda()), similarity.host(), 2e-6, 0));
  }
};

TEST_F(NearestKeptCuda, EqualsCpuVersion) {
  check<f16>(64, {0, 1, 1, 30, 200, 150}, {0, 1, 0, 0, 65, 64});  // 64 dropped keys to a warp row, 64 kept ones to a tile
  check<bf16>(128, {140, 100}, {9, 73});
  check<f16>(256, {90, 100}, {3, 30});
  check<f16>(40, {90, 100}, {3, 30});
  check<float>(64, {90, 100}, {3, 30});
}

}  // namespace
}  // namespace kvlab
