#include "base/parallel.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cstring>
#include <numeric>
#include <set>
#include <stdexcept>

#include "base/big_array.h"
#include "base/ceil_div.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/kv_rows.h"
#include "kernels/score/token_stats/token_stats.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/page_summaries_op.h"
#include "kernels/select/top_k/top_k.h"
#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

constexpr std::int32_t kHeads = 4, kGroup = 3, kDim = 20, kPrompt = 131, kPage = 8;

// Normal-like numbers that begin `offset` floats after an aligned address.
struct Moved {
  std::vector<float> memory;
  float* data;
  Moved(std::int64_t n, std::size_t offset, std::uint64_t seed) : memory(static_cast<std::size_t>(n) + offset + 16) {
    const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) / 4 % 16;
    data = memory.data() + to_line + offset;
    for (std::int64_t i = 0; i < n; ++i)
      data[i] = static_cast<float>(2 * Draw{seed, Purpose::kTest, static_cast<std::uint64_t>(i)}.uniform() - 1);
  }
};

// Everything that the kernels compute for one made-up cache whose buffers begin at this offset, as one list of numbers.
std::vector<float> results(std::size_t offset) {
  const std::int32_t pages = ceil_div(kPrompt, kPage), capacity = pages * kPage;
  Moved k(kHeads * capacity * kDim, offset, 1), v(kHeads * capacity * kDim, offset, 2), q(kPrompt * kHeads * kGroup * kDim, offset, 3);
  PagedRows rows(std::vector<std::int32_t>(kHeads, kPrompt), kDim, kPage, 1);
  for (std::int32_t i = 0; i < kHeads * capacity; ++i)
    rows.position[static_cast<std::size_t>(rows.kv.slot(i / capacity, i % capacity))] = i % capacity;
  KvRows& kv = rows.kv;
  kv.kv_heads = kHeads, kv.group = kGroup, kv.k = k.data, kv.v = v.data;

  const Queries prompt{q.data, kPrompt, 0}, last{q.data + (kPrompt - 1) * kHeads * kGroup * kDim, 1, kPrompt - 1};
  std::vector<float> all;
  const auto keep = [&](const float* x, std::int64_t n) { all.insert(all.end(), x, x + n); };

  Moved sum(kv.total(), offset, 4), sum_sq(kv.total(), offset, 5), max(kv.total(), offset, 6);
  AttentionStats stats;
  stats.kv = kv, stats.queries = &prompt, stats.sum = sum.data;
  run_cpu(stats);
  stats.wants_sum_sq = stats.wants_max = true, stats.sum_sq = sum_sq.data, stats.max = max.data;
  run_cpu(stats);
  for (const Moved* x : {&sum, &sum_sq, &max}) keep(x->data, kv.total());
  TokenStats token;
  token.kv = kv, token.queries = &prompt;
  run_cpu(token);
  all.resize(all.size() + rows.words.size());
  std::memcpy(all.data() + all.size() - rows.words.size(), rows.words.data(), 4 * rows.words.size());

  Moved out(kHeads * kGroup * kDim, offset, 7);
  std::vector<std::vector<float>> p(kHeads, std::vector<float>(kGroup * kPrompt)), bounds(kHeads);
  std::vector<float*> lines, bound_rows;
  for (std::size_t h = 0; h < kHeads; ++h) {
    bounds[h].resize(static_cast<std::size_t>(pages * 2 * kDim));
    lines.push_back(p[h].data()), bound_rows.push_back(bounds[h].data());
  }
  Segment everything;
  everything.kv = kv;
  run_cpu(Attend{&everything, 1, &last, &out.data, nullptr, lines.data()});
  keep(out.data, kHeads * kGroup * kDim);
  for (const auto& line : p) keep(line.data(), std::ssize(line));

  const std::vector<std::int32_t> none(kHeads, 0), few(kHeads, 5);
  run_cpu(PageSummaries{kv, kPage, kPage, none.data(), bound_rows.data(), PageSummaries::Kind::kBounds});
  std::vector<std::int64_t> units{0}, chosen{0};
  for (std::int32_t h = 0; h < kHeads; ++h) units.push_back(units.back() + pages), chosen.push_back(chosen.back() + 5);
  const std::vector<const float*> summaries(bound_rows.begin(), bound_rows.end());
  Moved scores(units.back(), offset, 8);
  PageScores score;
  score.num_rows = score.kv_heads = kHeads, score.group = kGroup, score.head_dim = kDim, score.queries = &last;
  score.summaries = summaries.data(), score.first = units.data(), score.scores = scores.data;
  run_cpu(score);
  keep(scores.data, units.back());
  std::vector<std::int32_t> index(static_cast<std::size_t>(chosen.back()));
  run_cpu(TopK{kHeads, units.data(), scores.data, few.data(), chosen.data(), index.data()});
  for (const std::int32_t i : index) all.push_back(static_cast<float>(i));
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

TEST(ParallelKernels, SameBitsAtEveryAddress) {
  const std::vector<float> aligned = results(0);
  for (const std::size_t offset : {1U, 3U, 8U, 15U}) EXPECT_TRUE(same_bits(results(offset), aligned)) << "offset " << offset;
}

TEST(ParallelKernels, SameBitsWithEveryNumberOfThreads) {
  const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 3);
  std::vector<float> alone;
  tbb::task_arena(1).execute([&] { alone = results(1); });
  for (const int threads : {2, 3}) {
    std::vector<float> shared;
    tbb::task_arena(threads).execute([&] { shared = results(1); });
    EXPECT_TRUE(same_bits(shared, alone)) << threads << " threads";
  }
}

TEST(ParallelFor, CallsEachPartOnce) {
  for (const std::int64_t n : {0, 1, 2, 100}) {
    std::vector<int> calls(static_cast<std::size_t>(n), 0);
    for_each_in_parallel(n, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
    EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(n), 1));
  }
}

TEST(ParallelFor, PassesExceptionsOn) {
  const auto fails = [](std::int64_t i) {
    if (i == 3) throw std::runtime_error("three");
  };
  EXPECT_THROW(for_each_in_parallel(5, fails), std::runtime_error);
}

TEST(Streams, ReadsEachPlaceInTurn) {
  std::vector<std::int64_t> order;
  for_each_in_streams(19, [&](std::int64_t i) { order.push_back(i); });  // 8 places: three of 3 tokens, five of 2
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 3, 6, 9, 11, 13, 15, 17, 1, 4, 7, 10, 12, 14, 16, 18, 2, 5, 8}));
  for (const std::int64_t n : {0, 1, 7, 8, 9, 64}) {
    std::set<std::int64_t> seen;
    for_each_in_streams(n, [&](std::int64_t i) { seen.insert(i); });
    EXPECT_EQ(std::ssize(seen), n);
  }
}

TEST(BigArray, KeepsMemoryForTheNextOfItsSize) {
  constexpr std::size_t kFloats = 3 << 20;
  const float* where = nullptr;
  {
    BigArray<float> a(kFloats);
    where = a.data();
    a.data()[kFloats - 1] = 1.0F;
  }
  const std::size_t idle = big_memory::idle_bytes();
  EXPECT_GE(idle, kFloats * sizeof(float));
  {
    BigArray<float> b(kFloats);
    EXPECT_EQ(b.data(), where);
    EXPECT_EQ(big_memory::idle_bytes(), idle - kFloats * sizeof(float));
    BigArray<float> moved = std::move(b);
    EXPECT_EQ(moved.data(), where);
    EXPECT_EQ(b.data(), nullptr);  // NOLINT: the state of a moved-from array is specified
  }
  EXPECT_EQ(big_memory::idle_bytes(), idle);
  BigArray<float> larger(2 * kFloats);  // the idle array goes: together they would exceed what was in use before
  EXPECT_LT(big_memory::idle_bytes(), idle);
}

}  // namespace
}  // namespace kvlab
