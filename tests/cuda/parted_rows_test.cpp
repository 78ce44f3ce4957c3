#include "kernels/kv_rows.h"
#include "kernels/merge/merge_into/merge_into.h"
#include "kernels/merge/nearest_kept/nearest_kept.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/take_due_op.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/key_links_op.h"
#include "policies/kv/disposal/merge_gate_op.h"
#include "policies/kv/disposal/row_states_op.h"
#include "policies/kv/disposal/slerp_pairs_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// The tokens of rows parted at random: kept[r] of them stay.
template <class T>
class PartsFixture {
 public:
  PartsFixture(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& num_kept,
               std::uint64_t seed)
      : rows(shape, lengths, seed), kept_first(1, 0), dropped_first(1, 0) {
    std::mt19937_64 random(seed + 9);
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(lengths[r]));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + num_kept[r]);
      std::sort(all.begin() + num_kept[r], all.end());
      kept.insert(kept.end(), all.begin(), all.begin() + num_kept[r]);
      dropped.insert(dropped.end(), all.begin() + num_kept[r], all.end());
      kept_first.push_back(static_cast<std::int64_t>(kept.size()));
      dropped_first.push_back(static_cast<std::int64_t>(dropped.size()));
    }
    device_kept_ = DeviceBuffer<std::int32_t>(kept), device_dropped_ = DeviceBuffer<std::int32_t>(dropped);
  }
  PartedRows host() { return {rows.host(), kept_first.data(), kept.data(), dropped_first.data(), dropped.data()}; }
  PartedRows device() { return {rows.device(), kept_first.data(), device_kept_.data(), dropped_first.data(), device_dropped_.data()}; }
  PartedRows at(bool gpu) { return gpu ? device() : host(); }
  [[nodiscard]] std::int64_t total_dropped() const { return dropped_first.back(); }

  RowsFixture<T> rows;
  std::vector<std::int64_t> kept_first, dropped_first;
  std::vector<std::int32_t> kept, dropped;

 private:
  DeviceBuffer<std::int32_t> device_kept_, device_dropped_;
};

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
    EXPECT_TRUE(same(due));
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
        EXPECT_TRUE(same(target));
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
  EXPECT_TRUE(same(position));
}

TEST_F(CudaTest, RowStatesEqualCpuVersion) {
  constexpr std::int32_t kMid = 12, kFeatures = 5, kD = 24, kGroup = 3;
  PartsFixture<bf16> parts({.kv_heads = 2, .group = kGroup, .head_dim = kD, .page_tokens = 8}, {9, 70, 1, 0}, {4, 20, 1, 0}, 6);
  const QueriesFixture queries({2, 1}, {80, 9}, 2 * kGroup, kD, 9);
  std::uint64_t seed = 20;
  const auto numbers = [&](std::int64_t n) { return random_elements<float>(n, ++seed, 0.5F); };
  const std::vector<float> a1 = numbers(6 * kD * kMid), a2 = numbers(6 * kMid * kFeatures), b1 = numbers(2 * kD * kMid),
                           b2 = numbers(2 * kMid * kFeatures), c = numbers(2 * kFeatures * kFeatures), s1 = numbers(2 * kFeatures),
                           s2 = numbers(2 * kFeatures);
  const StateMaps maps{kMid, kFeatures, a1.data(), a2.data(), b1.data(), b2.data(), c.data(), s1.data(), s2.data()};
  const Ints line{3, 0, 1, 2}, tokens{kFeatures, kFeatures, 0, 0};
  const Longs first = prefix_sums(tokens);
  Twice<float> state(std::vector<float>(static_cast<std::size_t>(4 * maps.state_floats(kD)), 0.25F)),
      weights(std::vector<float>(2 * kFeatures * 2 * kGroup)), values(std::vector<float>(4 * kFeatures * kD));
  run_both([&](bool gpu) { return RowStates{parts.at(gpu), maps, line.data(), state.at(gpu)}; });
  EXPECT_TRUE(all_near(state.device(cuda()), state.host(), 1e-4, 1e-4));
  run_both([&](bool gpu) {
    return RowStates{parts.at(gpu), maps,         line.data(), state.at(gpu),   RowStates::Kind::kRead, queries.at(gpu),
                     tokens.data(), first.data(), 2,           weights.at(gpu), values.at(gpu)};
  });
  EXPECT_TRUE(all_near(weights.device(cuda()), weights.host(), 1e-3, 1e-3, true));
  EXPECT_TRUE(all_near(values.device(cuda()), values.host(), 1e-3, 1e-3));
}

}  // namespace
}  // namespace kvlab
