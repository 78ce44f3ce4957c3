#include "kernels/kv_rows.h"
#include "kernels/storage/cast/cast.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/stored/stored_code.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/format/exponent_code/exponent_code.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Random lists of tokens of each row, ascending: entries[r] of them, of which tokens[r] are tokens.
template <class T>
class ListedFixture {
 public:
  ListedFixture(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& entries,
                const std::vector<std::int32_t>& tokens, std::uint64_t seed)
      : rows(shape, lengths, seed), first(1, 0) {
    std::mt19937_64 random(seed + 9);
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(lengths[r]));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      all.resize(static_cast<std::size_t>(tokens[r]));
      std::sort(all.begin(), all.end());
      all.resize(static_cast<std::size_t>(entries[r]), -1);
      index.insert(index.end(), all.begin(), all.end());
      first.push_back(static_cast<std::int64_t>(index.size()));
    }
    device_index_ = DeviceBuffer<std::int32_t>(index);
  }
  ListedTokens host(bool values = false) { return {rows.host(), first.data(), index.data(), values}; }
  ListedTokens device(bool values = false) { return {rows.device(), first.data(), device_index_.data(), values}; }
  ListedTokens at(bool gpu, bool values = false) { return gpu ? device(values) : host(values); }

  RowsFixture<T> rows;
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> index;

 private:
  DeviceBuffer<std::int32_t> device_index_;
};

class CastCuda : public CudaTest {
 protected:
  // The CPU's bytes, and what comes back rounded once to T.
  template <class T>
  void check(StoredType type, std::int32_t head_dim, const std::vector<std::int32_t>& lengths, bool values, bool extremes) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << " to " << static_cast<int>(type) << " head_dim " << head_dim);
    RowsFixture<T> rows({1, 1, head_dim, 16, 0}, lengths, 41, 10.0F);
    std::mt19937_64 random(42);
    if (extremes) {  // any bits: infinities, NaN, subnormals, all exponents
      for (float& x : values ? rows.v : rows.k) x = to_float(from_float<T>(std::bit_cast<float>(static_cast<std::uint32_t>(random()))));
      rows.upload();
    }
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> list;
    for (const std::int32_t n : lengths) {
      for (std::int32_t i = 0; i < n; ++i)
        if (random() % 4 != 0) list.push_back(i);
      for (std::uint64_t i = 0; i < random() % 3; ++i) list.push_back(-1);
      first.push_back(static_cast<std::int64_t>(list.size()));
    }
    Twice<std::int32_t> index(list);
    Twice<std::uint8_t> stored(first.back() * head_dim * bytes_of(type));
    const auto op = [&](bool gpu, bool unpacks) {
      return Cast{{rows.at(gpu), first.data(), index.at(gpu), values}, type, stored.at(gpu), unpacks};
    };
    run_both([&](bool gpu) { return op(gpu, false); });
    EXPECT_TRUE(same(stored));
    std::vector<float>& exact = values ? rows.v : rows.k;
    const auto expect_exact = [&](bool has_nan) {
      const std::vector<float> got = values ? rows.device_values(cuda()) : rows.device_keys(cuda());
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float wanted = to_float(from_float<T>(exact[i]));
        ASSERT_TRUE(got[i] == wanted || (has_nan && std::isnan(got[i]) && std::isnan(wanted)))
            << "element " << i << ": " << got[i] << ", not " << wanted;
      }
    };
    expect_exact(true);
    std::fill(exact.begin(), exact.end(), 3.0F);  // back into vectors that hold something else
    rows.upload();
    run_both([&](bool gpu) { return op(gpu, true); });
    expect_exact(false);
  }
};

TEST_F(CastCuda, HasTheCpusBytes) {
  for (const StoredType type : {StoredType::kFp32, StoredType::kFp16, StoredType::kBf16, StoredType::kFp8E4M3, StoredType::kFp8E5M2})
    for (const bool extremes : {false, true}) {
      check<float>(type, 64, {40, 0, 33, 1}, false, extremes);
      check<bf16>(type, 128, {17, 200}, true, extremes);
      check<f16>(type, 24, {31, 9}, true, extremes);
      check<float>(type, 7, {31, 65}, true, extremes);
    }
  check<bf16>(StoredType::kFp8E4M3, 64, {0, 0}, false, false);
}

class TokenCopyCuda : public CudaTest {
 protected:
  // Channels 0, 3, 6, ... of even rows and the last ones of odd rows.
  static std::vector<std::uint8_t> some_channels(std::int32_t rows, std::int32_t d, std::int32_t keep) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * ((d + 7) / 8)), 0);
    for (std::int32_t r = 0; r < rows; ++r)
      for (std::int32_t i = 0; i < keep; ++i) {
        const std::int32_t c = r % 2 == 0 ? 3 * i % d : d - 1 - i;
        mask[static_cast<std::size_t>(r * ((d + 7) / 8) + c / 8)] |= static_cast<std::uint8_t>(1U << (c % 8));
      }
    return mask;
  }

  template <class T>
  void check_vectors(std::int32_t d, std::int32_t keep, bool values) {
    SCOPED_TRACE(testing::Message() << d << " channels of which " << keep);
    ListedFixture<T> f({.kv_heads = 2, .head_dim = d, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 3);
    std::vector<float>& pool = values ? f.rows.v : f.rows.k;
    for (std::size_t i = 0; i < pool.size(); i += 97) pool[i] = std::numeric_limits<float>::infinity();
    f.rows.upload();
    Twice<std::uint8_t> mask(some_channels(4, d, keep));
    const auto n = static_cast<std::size_t>(f.first.back() * (keep > 0 ? keep : d));
    std::vector<float> stored(n, 5.0F);
    const DeviceBuffer<T> device_stored(std::vector<T>(n, from_float<T>(5.0F)));
    TokenCopy a{.tokens = f.host(values), .stored = stored.data(), .keep = keep}, b = a;
    b.tokens = f.device(values), b.stored = device_stored.data();
    if (keep > 0) a.channels = mask.at(false), b.channels = mask.at(true);
    run_cpu(a);
    run_cuda(b, cuda());
    EXPECT_EQ(floats(device_stored.to_host(cuda().stream())), stored);
    std::fill(pool.begin(), pool.end(), 7.0F);
    f.rows.upload();
    b.tokens = f.device(values), a.way = b.way = TokenCopy::Way::kIntoPages;
    run_cpu(a);
    run_cuda(b, cuda());
    EXPECT_EQ(values ? f.rows.device_values(cuda()) : f.rows.device_keys(cuda()), pool);
  }
};

TEST_F(TokenCopyCuda, VectorsEqualCpuVersion) {
  check_vectors<bf16>(40, 0, false);
  check_vectors<f16>(40, 25, true);
  check_vectors<float>(13, 5, false);
  check_vectors<bf16>(128, 77, true);
}

TEST_F(TokenCopyCuda, WordsEqualCpuVersion) {
  for (const std::int32_t words : {0, 1, 3}) {
    RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 8, .num_words = words}, {0, 9, 70, 2000}, 5);
    std::mt19937_64 random(6);
    for (std::uint32_t& w : rows.words) w = static_cast<std::uint32_t>(random());
    rows.upload();
    Twice<std::uint32_t> stored((1 + words) * rows.first.back());
    run_both([&](bool gpu) { return copy_words(rows.at(gpu), TokenCopy::Way::kFromPages, stored.at(gpu)); });
    EXPECT_TRUE(same(stored));
    std::fill(rows.words.begin(), rows.words.end(), 9);
    std::fill(rows.position.begin(), rows.position.end(), -4);
    rows.upload();
    run_both([&](bool gpu) { return copy_words(rows.at(gpu), TokenCopy::Way::kIntoPages, stored.at(gpu)); });
    EXPECT_EQ(rows.device_words(cuda()), rows.words);
    EXPECT_EQ(rows.device_positions(cuda()), rows.position);
  }
}

using Halves = std::vector<std::uint16_t>;

class ChannelFormatsCuda : public CudaTest {
 protected:
  // All slots of the pool; what no token owns is NaN in both.
  template <class T>
  void expect_same_cache(ListedFixture<T>& f, double tolerance = 0) {
    const std::vector<float> k = f.rows.device_keys(cuda()), v = f.rows.device_values(cuda());
    const auto same = [&](float x, float y) {
      return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= static_cast<float>(tolerance) * std::max(1.0F, std::abs(y));
    };
    for (std::size_t i = 0; i < k.size(); ++i) {
      ASSERT_TRUE(same(k[i], to_float(from_float<T>(f.rows.k[i])))) << i << ": " << k[i] << " " << f.rows.k[i];
      ASSERT_TRUE(same(v[i], to_float(from_float<T>(f.rows.v[i])))) << i << ": " << v[i] << " " << f.rows.v[i];
    }
  }

  template <class T>
  void check_outliers(double share, bool per_channel, bool values, bool narrow) {
    SCOPED_TRACE(testing::Message() << share << per_channel << values << narrow);
    ListedFixture<T> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 1);
    for (float& x : f.rows.k) x = std::round(x * 16) / 16;  // ties
    f.rows.upload();
    const auto n = static_cast<std::size_t>(outlier_numbers({f.host(values), per_channel, share, nullptr, {}}));
    Twice<std::uint16_t> value(Halves(n, 7)), narrow_place(Halves(n, 7));
    Twice<std::int32_t> place(Ints(n, 7));
    const auto op = [&](bool gpu) {
      Outliers a{f.at(gpu, values), per_channel, share, value.at(gpu), {}};
      if (narrow)
        a.place.narrow = narrow_place.at(gpu);
      else
        a.place.wide = place.at(gpu);
      return a;
    };
    run_both(op);
    EXPECT_TRUE(same(value, place, narrow_place));
    expect_same_cache(f, 1e-3);  // means, summed in another order, on either side of a rounding
    run_both([&](bool gpu) { return unpacking(op(gpu)); });
    expect_same_cache(f, 1e-3);
  }
};

TEST_F(ChannelFormatsCuda, OutliersEqualCpuVersion) {
  check_outliers<f16>(0.1, true, false, true);
  check_outliers<f16>(0.3, false, true, false);
  check_outliers<float>(0.9, true, true, false);
  check_outliers<float>(0.0, false, false, true);
  check_outliers<float>(0.3, false, false, true);
  check_outliers<bf16>(1.0, false, false, false);
}

TEST_F(ChannelFormatsCuda, ChannelStatsEqualCpuVersions) {
  const std::int32_t d = 40;
  ListedFixture<f16> f({.kv_heads = 2, .group = 3, .head_dim = d, .page_tokens = 8}, {0, 9, 70, 300}, {0, 7, 60, 150}, {0, 7, 50, 150}, 8);
  const QueriesFixture queries({0, 5}, {3, 9}, 6, d, 9);
  const Ints line{2, 0, -1, 3};
  Twice<float> out(std::vector<float>(4 * d, 0.5F));
  for (const auto source : {ChannelStats::Source::kKeys, ChannelStats::Source::kValues, ChannelStats::Source::kQueries})
    for (const auto kind : {ChannelStats::Kind::kMaxAbs, ChannelStats::Kind::kMeanSquare}) {
      const bool lists = kind == ChannelStats::Kind::kMeanSquare;
      const auto into = lists ? ChannelStats::Into::kMultiply : ChannelStats::Into::kWrite;
      run_both([&](bool gpu) {
        const ListedTokens listed = lists ? f.at(gpu) : ListedTokens{};
        return ChannelStats{f.rows.at(gpu), source, kind, listed, queries.at(gpu), line.data(), into, out.at(gpu)};
      });
      EXPECT_TRUE(all_near(out.device(cuda()), out.host(), 0, 1e-6));
    }
}

TEST_F(ChannelFormatsCuda, ExponentCodeComesBackBitForBit) {
  ListedFixture<bf16> f({.kv_heads = 2, .head_dim = 40, .page_tokens = 8}, {0, 9, 70, 200, 5, 5}, {0, 7, 65, 150, 0, 0},
                        {0, 7, 43, 150, 0, 0}, 5);
  for (const bool values : {false, true}) {
    EXPECT_TRUE(equal(on_host(Ints(6, 5), [&](bool gpu, std::int32_t* bytes) { return ExponentCode{f.at(gpu, values), bytes}; })));
  }
  using Bytes = std::vector<std::uint8_t>;
  Twice<std::uint8_t> packed(Bytes(static_cast<std::size_t>(most_exponent_bytes(f.host())))), lengths(Bytes(3 * kExponentTable));
  Longs begin[2] = {Longs(6), Longs(6)}, end[2] = {Longs(6), Longs(6)};
  Ints bytes[2] = {Ints(6), Ints(6)};
  run_both([&](bool gpu) {
    return ExponentCode{f.at(gpu), bytes[gpu].data(), packed.at(gpu), lengths.at(gpu), begin[gpu].data(), end[gpu].data()};
  });
  EXPECT_EQ(begin[1], begin[0]);
  EXPECT_EQ(end[1], end[0]);
  EXPECT_TRUE(same(packed, lengths));
  const std::vector<float> before = f.rows.device_keys(cuda());
  run_cuda(ExponentCode{f.device(), nullptr, packed.at(true), lengths.at(true), begin[1].data(), end[1].data(), true}, cuda());
  const std::vector<float> after = f.rows.device_keys(cuda());
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof(float)), 0);  // slots that no row owns are NaN
}

// left * right is compared, not the factors; both are rounded to fp16, so 2^-10 of the vectors' size per factor, and the sums of the
// iteration are in fp32.
class LowRankCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int32_t rank, std::int32_t rounds, bool joint, bool is_pre_rope, bool leaves_some = false) {
    SCOPED_TRACE(testing::Message() << rank << " " << rounds << " " << joint << is_pre_rope);
    const std::int32_t d = 11, kv_heads = 2;
    const std::vector<std::int32_t> len{4, 4, 60, 60, 40, 40}, entries{0, 0, 40, 40, 7, 7}, tokens{0, 0, 33, 33, 3, 3};
    ListedFixture<T> f({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, len, entries, tokens, 1);
    // Few strong directions, as keys have: what the iteration finds is well determined.
    const std::vector<float> direction = random_elements<float>(3 * d, 2), size = random_elements<float>(3 * 4096, 3);
    std::size_t at = 0;
    f.rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) {
      for (std::size_t c = 0; c < d; ++c)
        for (std::size_t j = 0; j < 3; ++j)
          f.rows.k[slot * d + c] = f.rows.k[slot * d + c] * 0.1F + direction[j * d + c] * size[3 * at + j] / static_cast<float>(1 + 3 * j);
      ++at;
    });
    f.rows.upload();
    for (float& x : f.rows.k) x = to_float(from_float<T>(x));
    std::int32_t positions = 0;
    f.rows.for_each_token(
        [&](std::int32_t, std::int32_t, std::size_t slot) { positions = std::max(positions, f.rows.position[slot] + 1); });
    RowArrays<float> pre_rope({positions * kv_heads * d, positions * kv_heads * d, positions * kv_heads * d});
    for (std::size_t s = 0; s < 3; ++s) {  // of the same few directions
      const std::vector<float> noise = random_elements<float>(positions * kv_heads * d, 30 + s, 0.05F);
      for (std::size_t i = 0; i < noise.size(); ++i) {
        pre_rope.row(s)[i] = noise[i];
        for (std::size_t j = 0; j < 3; ++j)
          pre_rope.row(s)[i] += direction[j * d + i % d] * size[(3 * (i / d) + j) % size.size()] / static_cast<float>(1 + 3 * j);
      }
    }
    pre_rope.upload();
    const LowRankFactor shape{f.host(), joint, rank, rounds, 5, pre_rope.at(false), is_pre_rope};
    Twice<std::uint16_t> left(left_numbers(shape)), right(right_numbers(shape));
    const auto factor = [&](bool gpu) {
      return LowRankFactor{f.at(gpu), joint, rank, rounds, 5, pre_rope.at(gpu), is_pre_rope, left.at(gpu), right.at(gpu)};
    };
    run_both(factor);
    // Every third listed token of a row stays as it is, of one head other ones than of the next.
    std::vector<std::int64_t> exact_first{0};
    Ints exact;
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      for (std::int32_t i = static_cast<std::int32_t>(r % 2); i < tokens[r]; i += 3)
        exact.push_back(f.index[static_cast<std::size_t>(f.first[r] + i)]);
      exact_first.push_back(static_cast<std::int64_t>(exact.size()));
    }
    Twice<std::int32_t> all_exact(exact);
    const std::vector<float> before = f.rows.k;
    run_both([&](bool gpu) {
      LowRankFactor a = factor(gpu);
      a.unpacks = true, a.exact_first = leaves_some ? exact_first.data() : nullptr, a.exact = all_exact.at(gpu);
      return a;
    });
    const std::vector<float> got = f.rows.device_keys(cuda());
    f.rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      const auto row = exact.begin() + exact_first[static_cast<std::size_t>(r)],
                 end = exact.begin() + exact_first[static_cast<std::size_t>(r) + 1];
      if (!leaves_some || !std::binary_search(row, end, i)) return;
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) ASSERT_EQ(f.rows.k[c], before[c]) << r << " " << i;
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) ASSERT_EQ(got[c], before[c]) << r << " " << i;
    });
    f.rows.for_each_token([&](std::int32_t r, std::int32_t i, std::size_t slot) {
      for (std::size_t c = slot * d; c < (slot + 1) * d; ++c) ASSERT_NEAR(got[c], f.rows.k[c], 0.02) << r << " " << i;
    });
  }
};

TEST_F(LowRankCuda, EqualsCpuVersion) {
  check<f16>(3, 2, false, false);
  check<float>(3, 3, true, false);
  check<float>(30, 2, true, true);  // more than the matrices have
  check<f16>(3, 2, false, true);
  check<float>(11, 0, false, false);
  check<f16>(3, 2, true, true, true);
  check<float>(3, 2, false, false, true);
}

}  // namespace
}  // namespace kvlab
