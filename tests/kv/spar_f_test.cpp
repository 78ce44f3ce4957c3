#include <gtest/gtest.h>

#include <set>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

std::vector<double> softmax(std::vector<double> z) {
  double sum = 0;
  for (double& x : z) sum += x = std::exp(x);
  for (double& x : z) x /= sum;
  return z;
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
    EXPECT_EQ(traffic.asked_units, pages);
    EXPECT_EQ(traffic.hit_units, 0);
    EXPECT_EQ(traffic.fetched_bytes, pages * 512);
    EXPECT_EQ(traffic.disk_bytes, pages * 512);
    EXPECT_EQ(traffic.in_place_bytes, pages * 512) << "attention is computed where the pages are";
  }
}

TEST(SparF, EverythingOnFlashKeysTwice) {
  Decode d({4, 2, 1, 8, 16}, 1, 100, 3);
  auto part = make_part<SelectorRegistry>("spar_f");
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {3200, 0, 0}), (TierBytes{0, 8 * 4, 4800}));
}

TEST(SparF, KeepsTheContract) { expect_promises("spar_f", "{}", {{33, 5}, {1, 9}}, {65, 5}); }

}  // namespace
}  // namespace kvlab::test
