#include "kernels/attention/attend/attend.h"

#include "kernels/attention/append_kv/append_kv.h"
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

TEST_F(AttendCuda, RowsOfOneKind) {
  check_rows<float>({{2, 2, 64}, {40, 1, 0, 130}, {3, 2}}, kError);
  check_rows<bf16>({{1, 4, 128}, {300, 17}, {1, 1}, 2}, kError);
  check_rows<f16>({{1, 1, 128}, {700}, {1}, 3, false}, kError);
  check_rows<bf16>({{1, 7, 256, 32}, {60}, {2}, 4}, kError);
  check_rows<float>({{1, 2, 33, 5}, {21}, {2}, 5}, kError);
  check_rows<bf16>({{1, 3, 80, 7}, {50, 4}, {1, 0}, 6}, kError);
  check_rows<f16>({{1, 1, 7, 1}, {12}, {1}, 7}, kError);
  // The first sequence's queries are far after its tokens: a window leaves them nothing.
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

constexpr std::int32_t kHeads = 2;

// Keys and values of sequences, and what a cache of them holds.
struct Batch {
  KvFormat format = KvFormat::kBf16;
  std::int32_t head_dim = 0, page_tokens = 0;
  std::vector<std::int32_t> tokens;     // per sequence
  std::vector<std::vector<bf16>> k, v;  // per sequence [tokens, kHeads, head_dim]
  std::vector<std::int32_t> page_begin, page;
  std::int32_t pages = 0;
  std::vector<float> k_scale, v_scale;

  [[nodiscard]] std::int64_t page_size() const { return page_bytes(format, head_dim, page_tokens); }
  [[nodiscard]] std::int32_t capacity() const { return residual_capacity(format, 32); }
  [[nodiscard]] std::int32_t rows() const { return static_cast<std::int32_t>(tokens.size()) * kHeads; }
};

Batch make_batch(KvFormat format, std::int32_t head_dim, const std::vector<std::int32_t>& tokens) {
  Batch b{format, head_dim, fixed_page_tokens(format) > 0 ? fixed_page_tokens(format) : 16, tokens, {}, {}, {}, {}, 0, {}, {}};
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const std::int64_t n = std::int64_t{tokens[s]} * kHeads * head_dim;
    b.k.push_back(random_elements<bf16>(n, s + 1, 3.0F)), b.v.push_back(random_elements<bf16>(n, s + 100));
    if (n > 0) {
      b.k.back().front() = bf16{0x7FC0};                                                              // NaN is stored as its group's zero
      for (std::int32_t c = 0; c < head_dim; ++c) b.v.back()[static_cast<std::size_t>(c)] = bf16{0};  // a group without extent
    }
    for (std::int32_t h = 0; h < kHeads; ++h) {
      b.page_begin.push_back(static_cast<std::int32_t>(b.page.size()));
      for (std::int32_t i = 0; i < tokens[s]; i += b.page_tokens) b.page.push_back(b.pages++);
      b.k_scale.push_back(0.05F + 0.01F * static_cast<float>(h)), b.v_scale.push_back(0.01F);
    }
  }
  std::mt19937_64 random(3);
  std::shuffle(b.page.begin(), b.page.end(), random);
  return b;
}

struct Pools {
  std::vector<std::uint8_t> k, v;
  std::vector<std::uint16_t> window_k, window_v;
  friend bool operator==(const Pools&, const Pools&) = default;
};

Pools empty_pools(const Batch& b) {
  Pools p;
  p.k.assign(static_cast<std::size_t>(b.pages * b.page_size()), 0xFF), p.v = p.k;
  p.window_k.assign(is_kivi(b.format) ? static_cast<std::size_t>(b.rows() * b.capacity() * b.head_dim) : 1, 0xFFFF),
      p.window_v = p.window_k;
  return p;
}

// The row's slots of the window that hold tokens; the others are set to a fixed value.
void keep_live(const Batch& b, Pools& p) {
  if (!is_kivi(b.format)) return;
  for (std::int32_t r = 0; r < b.rows(); ++r) {
    const std::int32_t len = b.tokens[static_cast<std::size_t>(r / kHeads)], packed = kivi_packed(b.format, len, 32);
    std::vector<bool> live(static_cast<std::size_t>(b.capacity()));
    for (std::int32_t i = packed; i < len; ++i) live[static_cast<std::size_t>(i % b.capacity())] = true;
    for (std::int32_t i = 0; i < b.capacity() * b.head_dim; ++i) {
      if (live[static_cast<std::size_t>(i / b.head_dim)]) continue;
      const auto at = static_cast<std::size_t>(r * b.capacity() * b.head_dim + i);
      p.window_k[at] = p.window_v[at] = 0;
    }
  }
}

Pools expected(const Batch& b) {
  Pools p = empty_pools(b);
  for (std::int32_t r = 0; r < b.rows(); ++r) {
    const auto s = static_cast<std::size_t>(r / kHeads), row = static_cast<std::size_t>(r);
    const std::int32_t len = b.tokens[s], d = b.head_dim, packed = is_kivi(b.format) ? kivi_packed(b.format, len, 32) : len;
    const auto at = [&](std::int32_t i, std::int32_t c) { return static_cast<std::size_t>((i * kHeads + r % kHeads) * d + c); };
    for (std::int32_t begin = 0; begin < packed; begin += b.page_tokens) {
      const std::int32_t count = std::min(b.page_tokens, packed - begin);
      std::vector<float> k, v;
      for (std::int32_t i = begin; i < begin + count; ++i)
        for (std::int32_t c = 0; c < d; ++c) k.push_back(to_float(b.k[s][at(i, c)])), v.push_back(to_float(b.v[s][at(i, c)]));
      const std::int64_t page = b.page[static_cast<std::size_t>(b.page_begin[row] + begin / b.page_tokens)] * b.page_size();
      pack_page({b.format, d, b.page_tokens, p.k.data() + page, p.v.data() + page, b.k_scale[row], b.v_scale[row]}, k.data(), v.data(),
                count);
    }
    for (std::int32_t i = packed; i < len; ++i)
      for (std::int32_t c = 0; c < d; ++c) {
        const auto to = static_cast<std::size_t>((r * b.capacity() + i % b.capacity()) * d + c);
        p.window_k[to] = b.k[s][at(i, c)].bits, p.window_v[to] = b.v[s][at(i, c)].bits;
      }
  }
  keep_live(b, p);
  return p;
}

class AppendKvCuda : public CudaTest {
 protected:
  // Appends the batch's tokens `step` at a time, at the end `last` of them one by one.
  Pools append(const Batch& b, std::int32_t step, std::int32_t last) {
    const Pools empty = empty_pools(b);
    const DeviceBuffer<std::uint8_t> k(empty.k), v(empty.v);
    const DeviceBuffer<std::uint16_t> window_k(empty.window_k), window_v(empty.window_v);
    const DeviceBuffer<std::int32_t> page_begin(b.page_begin), page(b.page);
    const DeviceBuffer<float> k_scale(b.k_scale), v_scale(b.v_scale);
    AppendKv a;
    a.kv.format = b.format, a.kv.type = ElementType::kBf16, a.kv.num_rows = b.rows(), a.kv.kv_heads = kHeads, a.kv.head_dim = b.head_dim;
    a.kv.page_tokens = b.page_tokens, a.kv.page_begin = page_begin.data(), a.kv.page = page.data(), a.kv.k = k.data(), a.kv.v = v.data();
    a.kv.k_scale = k_scale.data(), a.kv.v_scale = v_scale.data(), a.kv.window_k = window_k.data(), a.kv.window_v = window_v.data();
    std::vector<std::int32_t> held(b.tokens.size());
    while (held != b.tokens) {
      std::vector<std::int32_t> count;
      for (std::size_t s = 0; s < held.size(); ++s) {
        const std::int32_t rest = b.tokens[s] - held[s];
        count.push_back(rest > last ? std::min(step, rest - last) : std::min(rest, 1));
      }
      append_once(b, a, held, count);
    }
    Pools p{k.to_host(), v.to_host(), window_k.to_host(), window_v.to_host()};
    keep_live(b, p);
    return p;
  }

 private:
  void append_once(const Batch& b, AppendKv a, std::vector<std::int32_t>& held, const std::vector<std::int32_t>& count) {
    const std::int64_t width = kHeads * b.head_dim, stride = width + 8;
    std::vector<std::int32_t> first{0}, len;
    std::vector<bf16> k, v;
    const auto add = [&](std::vector<bf16>& to, const std::vector<bf16>& from, std::int64_t token) {
      to.insert(to.end(), from.begin() + token * width, from.begin() + (token + 1) * width);
      to.resize(to.size() + static_cast<std::size_t>(stride - width));
    };
    for (std::size_t s = 0; s < held.size(); ++s) {
      for (std::int32_t i = 0; i < count[s]; ++i) add(k, b.k[s], held[s] + i), add(v, b.v[s], held[s] + i);
      held[s] += count[s];
      first.push_back(first.back() + count[s]);
      len.insert(len.end(), kHeads, held[s]);
    }
    const DeviceBuffer<std::int32_t> device_first(first), device_len(len);
    const DeviceBuffer<bf16> device_k(k), device_v(v);
    const bool one_each = std::count(count.begin(), count.end(), 1) == static_cast<std::ptrdiff_t>(count.size());
    a.kv.len = device_len.data(), a.k = device_k.data(), a.v = device_v.data(), a.token_stride = stride;
    a.first_token = one_each ? nullptr : device_first.data();
    a.tokens = first.back(), a.most_new = *std::max_element(count.begin(), count.end());
    run_cuda(a, cuda());
  }
};

// Every format, bit for bit as pack_page() encodes, whether tokens come at once, in chunks or one by one.
TEST_F(AppendKvCuda, EqualsPackedPages) {
  for (int f = 1; f < 8; ++f)
    for (const std::int32_t head_dim : {64, 128, 256}) {
      const Batch b = make_batch(static_cast<KvFormat>(f), head_dim, {33, 0, 130});
      SCOPED_TRACE(testing::Message() << name_of(b.format) << ", head_dim " << head_dim);
      const Pools pools = expected(b);
      EXPECT_EQ(append(b, 1000, 0), pools);
      EXPECT_EQ(append(b, 50, 3), pools);
    }
  const Batch wide = make_batch(KvFormat::kBf16, 96, {20, 5});
  EXPECT_EQ(append(wide, 7, 2), expected(wide));
}

// A page of codes leaves the window while tokens come one by one.
TEST_F(AppendKvCuda, WindowMovesTokenByToken) {
  for (const KvFormat format : {KvFormat::kKivi4, KvFormat::kKivi2}) {
    const Batch b = make_batch(format, 64, {165, 100});
    const Pools pools = expected(b);
    EXPECT_EQ(append(b, 90, 75), pools) << name_of(format);
  }
}

TEST_F(AppendKvCuda, NothingToDo) {
  AppendKv a;
  run_cuda(a, cuda());
  a.tokens = 1, a.kv.num_rows = 1, a.kv.head_dim = 72;
  EXPECT_THROW(run_cuda(a, cuda()), CudaError);
}

template <class In, class Out>
void check_rows(CudaContext& cuda, std::int32_t head_dim, std::uint64_t seed) {
  const Ints count{3, 0, 1, 40, 7}, len{3, 3, 9, 9, 1, 1, 77, 77, 30, 30};
  RowsFixture<Out> rows({kHeads, 1, head_dim, 16, 2}, len, seed);
  std::vector<std::vector<float>> k, v;
  std::vector<DeviceBuffer<In>> device_k, device_v;
  std::vector<AppendedTokens> news, device_news;
  for (const std::int32_t s : {4, 0, 1, 3, 2}) {
    const std::int32_t n = count[static_cast<std::size_t>(s)];
    const auto x = random_elements<In>(std::int64_t{n} * kHeads * head_dim, seed + 1), y = random_elements<In>(std::ssize(x), seed + 2);
    k.push_back(floats(x)), v.push_back(floats(y)), device_k.emplace_back(x), device_v.emplace_back(y);
    news.push_back({s, n, 100 * s, k.back().data(), v.back().data()});
    device_news.push_back({s, n, 100 * s, device_k.back().data(), device_v.back().data()});
  }
  run_cuda(AppendRows{rows.device(), device_news, kElementType<In>}, cuda);
  run_cpu(AppendRows{rows.host(), news, ElementType::kF32});
  EXPECT_EQ(rows.device_positions(cuda), rows.position);
  EXPECT_EQ(rows.device_words(cuda), rows.words);
  const std::vector<float> keys = rows.device_keys(cuda), values = rows.device_values(cuda);
  rows.for_each_token([&](std::int32_t row, std::int32_t token, std::size_t slot) {
    for (std::size_t c = slot * static_cast<std::size_t>(head_dim); c < (slot + 1) * static_cast<std::size_t>(head_dim); ++c) {
      ASSERT_EQ(keys[c], to_float(from_float<Out>(rows.k[c]))) << "row " << row << ", token " << token;
      ASSERT_EQ(values[c], to_float(from_float<Out>(rows.v[c]))) << "row " << row << ", token " << token;
    }
  });
}

TEST_F(AppendKvCuda, RowsEqualCpuVersion) {
  const FlatGrids flat;
  check_rows<bf16, bf16>(cuda(), 64, 1);
  check_rows<float, f16>(cuda(), 33, 2);
  check_rows<float, float>(cuda(), 128, 3);
}

TEST(AppendKvBytes, CountsReadAndWritten) {
  AppendKv a;
  a.kv.format = KvFormat::kFp8, a.kv.kv_heads = 8, a.kv.head_dim = 128, a.tokens = 10;
  EXPECT_EQ(bytes(a), 10 * 8 * (2 * 128 * (2 + 1) + 12));
}

}  // namespace
}  // namespace kvlab
