#include "kernels/attention/append_kv/append_kv.h"

#include <algorithm>

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

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
