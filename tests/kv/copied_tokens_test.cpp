#include <deque>
#include <set>

#include "kernels/storage/cast/cast.h"
#include "policies/kv/selector/low_bit_copy_op.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// The rule by plain loops: every token keeps the last m probabilities of rows that read it.
class PlainAlisa {
 public:
  PlainAlisa(std::int32_t rows, std::int32_t m) : rings_(static_cast<std::size_t>(rows)), m_(m) {}

  void push(const Decode& d, std::int32_t row, const float* q, const std::vector<std::int32_t>& tokens) {
    std::vector<double> p(tokens.size(), 0.0);
    for (std::int32_t h = 0; h < d.model.group(); ++h) {
      std::vector<double> z;
      for (const std::int32_t i : tokens) z.push_back(d.dot(q + h * d.model.head_dim, d.key(row, i)) / std::sqrt(d.model.head_dim));
      z = softmax(z);
      for (std::size_t i = 0; i < z.size(); ++i) p[i] += z[i] / d.model.group();
    }
    auto& ring = nth(rings_, row);
    ring.resize(std::max(ring.size(), static_cast<std::size_t>(tokens.back()) + 1));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      auto& values = nth(ring, tokens[i]);
      values.push_back(p[i]);
      if (std::ssize(values) > m_) values.pop_front();
    }
  }
  [[nodiscard]] std::vector<std::int32_t> select(std::int32_t row, std::int32_t n, std::int32_t budget) const {
    const std::int32_t tail = n - std::max(1, budget / 2);
    std::vector<double> sums;
    for (std::int32_t i = 0; i < tail; ++i) {
      const auto& values = nth(nth(rings_, row), i);
      sums.push_back(std::accumulate(values.begin(), values.end(), 0.0));
    }
    return tokens_of(best(sums, static_cast<std::size_t>(std::max(0, budget - (n - tail)))), 1, 0, tail, n);
  }

 private:
  std::vector<std::vector<std::deque<double>>> rings_;
  std::int32_t m_;
};

TEST(Alisa, NewestHalfAndWhatTheLastRowsFavoured) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    Decode d({4, 2 * group, 2, 8, 16}, 2, 60, 3, true, 4);
    auto part = make_part<SelectorRegistry>("alisa", "{budget_frac: 0.2, row_tokens: 3}");
    d.prefill(*part);
    PlainAlisa plain(4, 3);
    for (std::int32_t r = 0; r < 4; ++r)
      for (std::int32_t t = 57; t < 60; ++t)
        plain.push(d, r, d.query(r, 0) - static_cast<std::ptrdiff_t>(59 - t) * d.model.q_heads * 8, range(0, t + 1));
    for (std::int32_t step = 0; step < 12; ++step) {
      const auto rows = d.decode(*part);
      for (std::int32_t r = 0; r < 4; ++r) {
        const auto& tokens = nth(rows, r);
        EXPECT_EQ(tokens, plain.select(r, d.tokens(), d.tokens() / 5)) << "group " << group << " step " << step;
        plain.push(d, r, d.query(r, 0), tokens);
      }
    }
  }
}

using Lines = std::vector<std::vector<double>>;

double half(double x) { return static_cast<double>(from_stored(StoredType::kFp16, to_stored(StoredType::kFp16, static_cast<float>(x)))); }

// x[i] after coding and decoding, all of one group.
double coded(const std::vector<double>& group, double x, std::int32_t bits) {
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  const double zero = half(bits == 1 ? (3 * *low + *high) / 4 : *low);
  const double scale = half(bits == 1 ? (*high - *low) / 2 : (*high - *low) / ((1 << bits) - 1));
  return scale == 0 ? zero : zero + scale * std::clamp(std::round((x - zero) / scale), 0.0, static_cast<double>((1 << bits) - 1));
}

// Keys of a row with the first `covered` tokens coded per channel, and its values (the same numbers) coded per token.
std::pair<Lines, Lines> copy_of(const Decode& d, std::int32_t row, std::int32_t covered, std::int32_t bits, std::int32_t group) {
  Lines k, v;
  for (std::int32_t i = 0; i < d.tokens(); ++i) {
    k.emplace_back(d.key(row, i), d.key(row, i) + d.model.head_dim);
    v.push_back(k.back());
    for (std::int32_t c = 0; c < d.model.head_dim && i < covered; ++c) {
      std::vector<double> along, across;
      for (std::int32_t j = i / group * group; j < (i / group + 1) * group; ++j) along.push_back(static_cast<double>(d.key(row, j)[c]));
      for (std::int32_t j = c / group * group; j < std::min(d.model.head_dim, (c / group + 1) * group); ++j)
        across.push_back(static_cast<double>(d.key(row, i)[j]));
      nth(k.back(), c) = coded(along, static_cast<double>(d.key(row, i)[c]), bits);
      nth(v.back(), c) = coded(across, static_cast<double>(d.key(row, i)[c]), bits);
    }
  }
  return {k, v};
}

std::vector<double> logits(const Decode& d, const float* q, const Lines& keys) {
  std::vector<double> z;
  for (const auto& key : keys) z.push_back(dot(q, key.data(), d.model.head_dim) / std::sqrt(d.model.head_dim));
  return z;
}

// The tokens that the query `back` steps ago wants most of the first `covered`, by the coded keys.
std::vector<std::int32_t> wanted(const Decode& d, std::int32_t row, const Lines& keys, std::int32_t covered, std::int32_t back,
                                 std::size_t top) {
  std::vector<double> sum(static_cast<std::size_t>(covered), 0.0);
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    const auto p = softmax(logits(d, d.query(row, h) - static_cast<std::ptrdiff_t>(back) * d.model.q_heads * d.model.head_dim, keys));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += p[i];
  }
  return best(sum, top);
}

TEST(SpeCache, ReadsTheCopyAndWhatTheGuessWantsInFull) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t bits : {1, 2, 4}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, 43, "spe_cache",
                  "{top_tokens: 5, residual_tokens: 6, group_tokens: 4, guess: " + std::string(bits == 4 ? "right" : "previous") +
                      ", bits: " + std::to_string(bits) + "}");
      for (std::int32_t t = 0; t < 6; ++t) {
        const std::vector<float> out = attended_output(d, *d.part);
        const std::int32_t covered = (d.tokens() - 6) / 4 * 4;
        for (std::int32_t r = 0; r < 4; ++r) {
          auto [k, v] = copy_of(d, r, covered, bits, 4);
          for (const std::int32_t i : wanted(d, r, k, covered, bits == 4 ? 0 : 1, 5))
            nth(k, i) = nth(v, i) = {d.key(r, i), d.key(r, i) + 8};
          for (std::int32_t h = 0; h < group; ++h) {
            const std::vector<double> expected = attend_plain(logits(d, d.query(r, h), k), v);
            const float* got = out.data() + ((r / 2) * 2 * group + r % 2 * group + h) * 8;
            for (std::size_t c = 0; c < 8; ++c) ASSERT_NEAR(static_cast<double>(got[c]), expected[c], 1e-4) << bits << " bits, step " << t;
          }
        }
      }
    }
}

TEST(SpeCache, OneBitLevelsLieAtTheQuarters) {
  RandomLayer layer({1, 1, 1, 1, 1}, 1, 4, 3);
  KvRows kv = layer.store.rows(), out = kv;
  const float x[] = {0.0F, 8.0F, 3.0F, 5.0F};
  for (std::int32_t i = 0; i < 4; ++i) *kv.key(0, i) = x[i], *kv.value(0, i) = x[i];
  KvStore other({1, 1, 1, 1, 1}, 1, 0, true);
  other.append(0, x, x, 4, 0);
  out = other.rows();
  const std::int32_t none = 0, all = 4;
  run_cpu(LowBitCopy{kv, {1, 4}, &none, &all, out});
  const float expected[] = {2.0F, 6.0F, 2.0F, 6.0F};
  for (std::int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(*out.key(0, i), expected[i]);
    EXPECT_EQ(*out.value(0, i), x[i]);  // alone in its group
  }
}

TEST(SpeCache, StoredBytes) {
  // 32 tokens of 64 channels in 2 bits, K and V: 2 x 512 bytes; 64 channels x 1 group and 32 tokens x 2 groups, 4 bytes each.
  EXPECT_EQ((LowBitCode{2, 32}.bytes(32, 64)), 2 * 512 + 4 * (64 + 64));
  EXPECT_EQ((LowBitCode{2, 32}.bytes(0, 64)), 0);
}

TEST(SpeCache, OnlyNewTokensAreEncoded) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 40, "spe_cache", "{top_tokens: 5, residual_tokens: 6, group_tokens: 4}");
  const auto encoded = [&] {
    std::int64_t n = 0;
    for (const OpCall& c : d.ops.log()) n += c.op == "low_bit_copy" ? c.tokens : 0;
    d.ops.clear_log();
    return n;
  };
  EXPECT_EQ(encoded(), 2 * 32);  // (40 - 6) / 4 * 4
  std::int64_t later = 0;
  for (std::int32_t t = 0; t < 6; ++t) d.decode(), later += encoded();
  EXPECT_EQ(later, 2 * 8);  // 40 of 46
}

TEST(SpeCache, TwoTiers) {
  Prefilled d({4, 2, 1, 8, 16}, 1, 1000, "spe_cache", "{top_tokens: 64, residual_tokens: 128, group_tokens: 32}");
  const std::int64_t codes = LowBitCode{2, 32}.bytes(864, 8);  // (1000 - 128) / 32 * 32
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {1000 * 32, 0, 0}), (TierBytes{(136 + 64) * 32 + codes, 800 * 32, 0}));
}

// Channels of largest summed magnitude over the row's query heads.
std::vector<std::int32_t> channels_of(const Decode& d, std::int32_t row, std::size_t count) {
  std::vector<double> size(static_cast<std::size_t>(d.model.head_dim), 0.0);
  for (std::int32_t h = 0; h < d.model.group(); ++h)
    for (std::size_t c = 0; c < size.size(); ++c) size[c] += std::abs(static_cast<double>(d.query(row, h)[c]));
  return best(size, count);
}

// Approximate probabilities of one query head.
std::vector<double> approximate(const Decode& d, std::int32_t row, std::int32_t head, const std::vector<std::int32_t>& channels) {
  const float* q = d.query(row, head);
  double part = 0, whole = 0;
  for (const std::int32_t c : channels) part += std::abs(static_cast<double>(q[c]));
  for (std::int32_t c = 0; c < d.model.head_dim; ++c) whole += std::abs(static_cast<double>(q[c]));
  std::vector<double> z;
  for (std::int32_t i = 0; i < d.tokens(); ++i) {
    double sum = 0;
    for (const std::int32_t c : channels) sum += static_cast<double>(q[c]) * static_cast<double>(d.key(row, i)[c]);
    z.push_back(sum / std::sqrt(d.model.head_dim * part / whole));
  }
  return softmax(z);
}

TEST(SparF, OutputIsMixedWithTheMeanValue) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    Prefilled d({4, 2 * group, 2, 16, 16}, 2, 64, "spar_f", "{channels_frac: 0.25, tokens_frac: 0.125}");
    for (std::int32_t t = 0; t < 3; ++t) {
      const std::vector<float> out = attended_output(d, *d.part);
      const std::int32_t n = d.tokens();
      for (std::int32_t r = 0; r < 4; ++r) {
        const std::vector<std::int32_t> channels = channels_of(d, r, 4);
        std::vector<double> mean(static_cast<std::size_t>(n - 1), 0.0), average(16, 0.0);
        for (std::int32_t h = 0; h < group; ++h)
          for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += approximate(d, r, h, channels)[i];
        for (std::int32_t i = 0; i < n; ++i)
          for (std::size_t c = 0; c < 16; ++c) average[c] += static_cast<double>(d.key(r, i)[c]) / n;
        std::vector<std::int32_t> kept = best(mean, static_cast<std::size_t>((n - 1) / 8));
        kept.push_back(n - 1);
        for (std::int32_t h = 0; h < group; ++h) {
          const std::vector<double> p = approximate(d, r, h, channels);
          double alpha = 0;
          std::vector<double> z;
          std::vector<std::vector<double>> v;
          for (const std::int32_t i : kept) {
            alpha += nth(p, i);
            z.push_back(d.logit(r, h, i));
            v.emplace_back(d.key(r, i), d.key(r, i) + 16);
          }
          const std::vector<double> o = attend_plain(z, v);
          const float* got = out.data() + ((r / 2) * 2 * group + r % 2 * group + h) * 16;
          for (std::size_t c = 0; c < 16; ++c)
            ASSERT_NEAR(static_cast<double>(got[c]), alpha * o[c] + (1 - alpha) * average[c], 1e-4) << "group " << group << " step " << t;
        }
      }
    }
  }
}

TEST(SparF, CountsWholeFlashPages) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 600, "spar_f", "{channels_frac: 0.25, tokens_frac: 0.05, page_bytes: 512}");
  for (std::int32_t t = 0; t < 3; ++t) {
    const auto rows = d.decode();
    // A page holds 512 / (2 x 8 x 2) = 16 tokens, or 256 numbers of a channel: 3 pages for each of 2 channels.
    std::int64_t pages = 0;
    for (const auto& row : rows) {
      std::set<std::int32_t> distinct;
      for (std::size_t i = 0; i + 1 < row.size(); ++i) distinct.insert(row[i] / 16);
      pages += static_cast<std::int64_t>(distinct.size()) + 2 * 3;
    }
    const Traffic traffic = d.part->take_traffic();
    EXPECT_EQ(std::tuple(traffic.asked_units, traffic.hit_units, traffic.fetched_bytes), std::tuple(pages, 0, pages * 512));
    EXPECT_EQ(traffic.disk_bytes, pages * 512);
    EXPECT_EQ(traffic.in_place_bytes, pages * 512) << "attention is computed where the pages are";
  }
}

}  // namespace
}  // namespace kvlab::test
