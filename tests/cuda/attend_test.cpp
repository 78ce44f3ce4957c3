#include "kernels/attention/attend/attend.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class AttendCuda : public CudaTest {
 protected:
  struct Case {
    RowsShape shape;
    std::vector<std::int32_t> lengths, counts;
    std::uint64_t seed = 1;
    bool probabilities = true;
    std::int32_t window = 0;
  };

  // Segments of the batch's rows: what the CPU and the device read. Data of the latter lives in `kept`.
  struct Segments {
    std::vector<Segment> host, device;
    std::vector<DeviceBuffer<std::int32_t>> indices;
    std::vector<DeviceBuffer<float>> weights;

    void add(const KvRows& host_kv, const KvRows& device_kv) { host.push_back({.kv = host_kv}), device.push_back({.kv = device_kv}); }
    void list(const std::vector<std::int64_t>& first, const std::vector<std::int32_t>& index) {
      indices.emplace_back(index);
      host.back().index_first = device.back().index_first = first.data();
      host.back().index = index.data(), device.back().index = indices.back().data();
    }
    void weigh(const float* Segment::*by, const std::vector<float>& x) {
      weights.emplace_back(x);
      host.back().*by = x.data(), device.back().*by = weights.back().data();
    }
  };

  void check(const Case& c, const Segments& segments, double tolerance) {
    SCOPED_TRACE(testing::Message() << "group " << c.shape.group << " of " << c.shape.head_dim << ", " << segments.host.size()
                                    << " segments");
    std::vector<std::int32_t> last;
    for (std::size_t s = 0; s < c.counts.size(); ++s)  // later sequences do not see all
      last.push_back(s == 0 ? 1 << 20 : c.lengths[s * static_cast<std::size_t>(c.shape.kv_heads)] - 1);
    const std::int32_t heads = c.shape.kv_heads * c.shape.group;
    const QueriesFixture queries(c.counts, last, heads, c.shape.head_dim, c.seed + 50);
    std::vector<std::int64_t> lines, numbers, columns;
    for (const std::int32_t n : c.counts)
      lines.push_back(n * heads), numbers.push_back(static_cast<std::int64_t>(n) * heads * c.shape.head_dim);
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(c.lengths.size()); ++r) {
      std::int64_t n = 0;
      for (const Segment& s : segments.host) n += s.tokens(r);
      columns.push_back(n * c.counts[static_cast<std::size_t>(r / c.shape.kv_heads)] * c.shape.group);
    }
    RowArrays<float> out(numbers, NAN), log_sum(lines, NAN), probabilities(columns, NAN);
    const auto n = static_cast<std::int32_t>(segments.host.size());
    same_in_every_order([&] {
      out.upload(), log_sum.upload(), probabilities.upload();
      run_cuda(Attend{segments.device.data(), n, queries.device(), out.at(true), log_sum.at(true),
                      c.probabilities ? probabilities.at(true) : nullptr, c.window},
               cuda());
      std::vector<float> all = out.device(cuda()), log_sums = log_sum.device(cuda());
      all.insert(all.end(), log_sums.begin(), log_sums.end());
      return all;
    });
    run_cpu(Attend{segments.host.data(), n, queries.host(), out.at(false), log_sum.at(false), probabilities.at(false), c.window});
    EXPECT_TRUE(all_near(out.device(cuda()), out.host(), tolerance, tolerance));
    EXPECT_TRUE(all_near(log_sum.device(cuda()), log_sum.host(), 1e-4, 0, true));
    if (c.probabilities) {
      EXPECT_TRUE(all_near(probabilities.device(cuda()), probabilities.host(), 1e-6, tolerance));
    }
  }

  // Some tokens of each row.
  struct Some {
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> index;
    explicit Some(const std::vector<std::int32_t>& lengths) {
      for (const std::int32_t n : lengths) {
        for (std::int32_t i = 0; i < n; i += 1 + i % 3) index.push_back(i);
        first.push_back(static_cast<std::int64_t>(index.size()));
      }
    }
  };

  template <class T>
  void check_rows(const Case& c, double tolerance) {
    RowsFixture<T> rows(c.shape, c.lengths, c.seed);
    Segments segments;
    segments.add(rows.host(), rows.device());
    check(c, segments, tolerance);
  }
};

// Sums in fp32 in another order, of some hundred numbers.
constexpr double kError = 2e-5;

TEST_F(AttendCuda, WholeRows) {
  check_rows<float>({{2, 2, 64}, {40, 1, 0, 130}, {3, 2}}, kError);
  check_rows<bf16>({{1, 4, 128}, {300, 17}, {1, 1}, 2}, kError);
  check_rows<f16>({{1, 1, 128}, {700}, {1}, 3, false}, kError);
  check_rows<bf16>({{1, 7, 256, 32}, {60}, {2}, 4}, kError);
}

TEST_F(AttendCuda, AnyHeadDim) {
  check_rows<float>({{1, 2, 33, 5}, {21}, {2}, 5}, kError);
  check_rows<bf16>({{1, 3, 80, 7}, {50, 4}, {1, 0}, 6}, kError);
  check_rows<f16>({{1, 1, 7, 1}, {12}, {1}, 7}, kError);
}

// The first sequence's queries are far after its tokens: a window leaves them nothing.
TEST_F(AttendCuda, Windows) {
  check_rows<float>({{2, 2, 64}, {40, 1, 30, 130}, {3, 2}, 30, true, 1}, kError);
  check_rows<bf16>({{1, 4, 128}, {300, 170}, {1, 5}, 31, true, 40}, kError);
  check_rows<f16>({{1, 1, 64}, {20, 700}, {1, 9}, 32, true, 300}, kError);
  check_rows<float>({{1, 2, 33}, {20, 60}, {2, 2}, 33, true, 1 << 30}, kError);
}

// Listed tokens in 16 bits, all of other rows in 32, and a token per row that represents many.
TEST_F(AttendCuda, SegmentsOfSeveralKinds) {
  const Case c{{2, 4, 64}, {50, 30, 9, 100}, {3, 1}, 10};
  RowsFixture<bf16> listed(c.shape, c.lengths, 11);
  RowsFixture<float> whole({2, 4, 64, 8}, {5, 0, 70, 33}, 12);
  RowsFixture<f16> stand_in({2, 4, 64, 1}, {1, 1, 0, 1}, 13);
  const Some some(c.lengths);
  const std::vector<float> log_weight{2.0F, 0.0F, 1.0F, 3.0F}, head_weight = random_elements<float>(16, 14);
  Segments segments;
  segments.add(listed.host(), listed.device());
  segments.list(some.first, some.index);
  segments.add(whole.host(), whole.device());
  segments.weigh(&Segment::head_log_weight, head_weight);
  segments.add(stand_in.host(), stand_in.device());
  segments.host.back().log_weight = segments.device.back().log_weight = log_weight.data();
  segments.add(listed.host(), listed.device());  // shares its rows with the first
  check(c, segments, kError);
}

// A number for each token and query head, some -infinity: of listed tokens and of whole rows.
TEST_F(AttendCuda, WeighsTokensForEachHead) {
  const Case c{{2, 4, 64}, {50, 30, 9, 300}, {1, 2}, 15};
  RowsFixture<bf16> listed(c.shape, c.lengths, 16);
  RowsFixture<float> whole({2, 4, 64, 8}, {5, 0, 70, 33}, 17);
  const Some some(c.lengths);
  std::vector<float> of_listed = random_elements<float>(some.index.size() * 4, 18), of_whole = random_elements<float>(108 * 4, 19);
  for (std::size_t i = 0; i < of_listed.size(); i += 3) of_listed[i] = -INFINITY;
  Segments segments;
  segments.add(listed.host(), listed.device());
  segments.list(some.first, some.index);
  segments.weigh(&Segment::token_log_weight, of_listed);
  segments.add(whole.host(), whole.device());
  segments.weigh(&Segment::token_log_weight, of_whole);
  check(c, segments, kError);
}

TEST_F(AttendCuda, NothingToSee) {
  Case c{{1, 2, 64}, {20, 0}, {1, 1}, 20};
  check_rows<bf16>(c, kError);
  c.counts = {0, 0};
  check_rows<bf16>(c, kError);
  run_cuda(Attend{}, cuda());
  RowsFixture<bf16> wide({1, 1, 264}, {3}, 1);
  const Segment s{.kv = wide.device()};
  const QueriesFixture queries({1}, {5}, 1, 264, 2);
  EXPECT_THROW(run_cuda(Attend{&s, 1, queries.device()}, cuda()), CudaError);
}

}  // namespace
}  // namespace kvlab
