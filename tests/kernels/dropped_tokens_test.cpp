#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/take_due_op.h"
#include "kernels/storage/token_copy_op.h"
#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;

ChannelStats mean_dropped(const PartedRows& rows, const std::int32_t* line, const std::int32_t* before, Floats& k, Floats& v) {
  const ListedTokens dropped{rows.kv, rows.dropped_first, rows.dropped};
  return {rows.kv, {}, ChannelStats::Kind::kRunningMean, dropped, nullptr, line, {}, k.data(), before, v.data()};
}

TEST(MeanDropped, RunsOnFromWhatWasDroppedBefore) {
  SmallLayer layer({{1, 0}, {3, 0}, {5, 6}}, {{0, 2}, {0, 4}, {0, 6}}, 2);
  const KeptLists lists({{2}, {0, 1, 2}});
  Parted parted(layer, lists);
  const std::int32_t line[] = {1, 0}, before[] = {2, 7};
  Floats k = {9, 9, 5, 4}, v = {8, 8, 1, 1};
  run_cpu(mean_dropped(parted.rows, line, before, k, v));
  EXPECT_EQ(k, (Floats{9, 9, 3.5F, 2}));  // (2 * 5 + 1 + 3) / 4, (2 * 4 + 0) / 4
  EXPECT_EQ(v, (Floats{8, 8, 0.5F, 2}));  // (2 * 1 + 0 + 0) / 4, (2 * 1 + 2 + 4) / 4
}

TEST(MeanDropped, FirstMeanIgnoresWhatLayThere) {
  SmallLayer layer({{1, 0}}, {{2, 3}});
  const KeptLists lists(std::initializer_list<Ints>{{}});
  Parted parted(layer, lists);
  const std::int32_t zero = 0;
  Floats k(2, std::numeric_limits<float>::quiet_NaN()), v = k;
  run_cpu(mean_dropped(parted.rows, &zero, &zero, k, v));
  EXPECT_EQ(k, (Floats{1, 0}));
  EXPECT_EQ(v, (Floats{2, 3}));
}

TEST(TokenCopy, DroppedKeysBeforeValues) {
  SmallLayer layer({{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, 12}}, 2);
  const KeptLists lists({{1}, {0, 1}});
  Parted parted(layer, lists);
  Floats packed(12);
  Ints position(3);
  const TokenCopy copy = copy_dropped(parted.rows, packed.data(), position.data());
  run_cpu(copy);
  EXPECT_EQ(packed, (Floats{1, 2, 7, 8, 5, 6, 11, 12, 5, 6, 111, 112}));
  EXPECT_EQ(position, (Ints{0, 2, 2}));
  EXPECT_EQ(call(copy).bytes, 3 * (2 * 2 * 2 * 2 + 12));
}

TEST(TakeDue, ListsEachDroppedTokenOnce) {
  SmallLayer layer(SmallLayer::Vectors(5, {1, 0}), SmallLayer::Vectors(5, {1, 0}), 1, 2);
  const std::int64_t first[] = {0, 3};
  const auto due = [&](const KeptLists& lists) {
    Ints index(3, 99);
    Parted parted(layer, lists);
    run_cpu(TakeDue{parted.rows.kv, 1, 1, 0, 1, first, index.data(), true, parted.rows.dropped_first, parted.rows.dropped});
    return index;
  };
  EXPECT_EQ(due(KeptLists({{1, 4}})), (Ints{0, 2, 3}));
  EXPECT_EQ(due(KeptLists(std::initializer_list<Ints>{{4}})), (Ints{1, -1, -1}));
}

TEST(ChannelDivisors, IsTheRootOfTheRatioOfMaxima) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 17, 5);
    const auto queries = layer.last_queries(1 << 30);
    Floats q(32, 0.5F), k(32, 4.0F);
    const std::int32_t line[] = {3, -1, 0, 1};
    ChannelStats stats{layer.store.rows(), ChannelStats::Source::kQueries};
    stats.queries = queries.data(), stats.line = line, stats.into = ChannelStats::Into::kRaise, stats.out = q.data();
    run_cpu(stats);
    for (const std::int32_t r : {0, 2, 3}) {
      for (std::int32_t c = 0; c < 8; ++c) {
        float largest = 0.5F;
        for (std::int32_t t = 0; t < 17; ++t)
          for (std::int32_t g = 0; g < group; ++g)
            largest =
                std::max(largest, std::fabs(queries[static_cast<std::size_t>(r / 2)].data[(t * 2 * group + r % 2 * group + g) * 8 + c]));
        EXPECT_EQ(q[static_cast<std::size_t>(line[r] * 8 + c)], largest) << group;
      }
    }
    for (std::size_t c = 16; c < 24; ++c) EXPECT_EQ(q[c], 0.5F);
    q[0] = 0, k[1] = 0;
    ChannelDivisors balance{4, 8, line, ChannelDivisors::Kind::kBalance, k.data()};
    balance.largest_q = q.data();
    run_cpu(balance);
    EXPECT_EQ(k[0], 1);
    EXPECT_EQ(k[1], 1);
    EXPECT_FLOAT_EQ(k[2], std::sqrt(4 / q[2]));
    EXPECT_EQ(k[16], 4);  // left out
  }
}

}  // namespace
}  // namespace kvlab::test
