#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

// A selector that brings units of `unit_tokens` tokens between what it always reads: [0, head) and [tail(n), n).
struct Tiered {
  std::string part, parameters;
  std::int32_t unit_tokens, sides, head;  // sides: 2 where keys and values come, 1 for one of them
  std::function<std::int32_t(std::int32_t)> tail;
  std::int64_t most_units;  // per row and step
  std::int32_t stays = 0;   // newest tokens of the prompt of 100 that are on the GPU before the first step
};

// Budgets of query heads that choose apart hold for each of the four heads of a group.
const std::vector<Tiered> kTiered = {
    {"infinigen", "{alpha: 2, max_frac: 0.2}", 1, 2, 0, [](auto n) { return n - 1; }, 0},
    {"alisa", "{budget_frac: 0.2}", 1, 2, 0, [](auto n) { return std::min(n - 1, n - std::max(1, std::max(1, n / 5) / 2)); }, 0, 10},
    {"k_cache", "{top_tokens: 6}", 1, 1, 0, [](auto n) { return n - 1; }, 24},
    {"retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}", 1, 2, 4, [](auto n) { return n - 8; }, 20, 8},
    {"retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5, search: hnsw}", 1, 2, 4, [](auto n) { return n - 8; }, 20,
     8},
    {"a2ats", "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1}", 1, 2, 3, [](auto n) { return n - 8; }, 4 * 12, 8},
    {"pq_cache", "{sink_tokens: 4, read_frac: 0.2}", 1, 2, 4, [](auto n) { return n - 9; }, 9, 9},
    {"lsh_sampling", "{sink_tokens: 4, local_tokens: 8, bits: 4, tables: 8}", 1, 2, 4, [](auto) { return 92; }, 88, 8},
    {"spe_cache", "{top_tokens: 5, residual_tokens: 6, group_tokens: 4}", 1, 2, 0, [](auto n) { return (n - 6) / 4 * 4; }, 5},
    {"leo_am", "{leaf_tokens: 4, root_tokens: 32}", 4, 2, 0, [](auto n) { return (n - 1) / 4 * 4; }, 3},
};

std::vector<std::int32_t> chosen_of(const std::vector<std::int32_t>& row, std::int32_t head, std::int32_t tail) {
  std::vector<std::int32_t> chosen;
  for (const std::int32_t i : row)
    if (i >= head && i < tail) chosen.push_back(i);
  return chosen;
}

TEST(Tiers, TrafficIsWhatTheTokensReadTell) {
  for (const Tiered& a : kTiered) {
    auto part = make_part<SelectorRegistry>(a.part, a.parameters);
    Decode d({4, 8, 2, 8, 16}, 2, 100, 3, true, part->num_words());
    d.prefill(*part);
    std::vector<std::int32_t> held(static_cast<std::size_t>(a.stays));
    std::iota(held.begin(), held.end(), 100 - a.stays);
    std::vector<std::vector<std::int32_t>> last(4, held);
    for (std::int32_t t = 0; t < 9; ++t) {
      const auto rows = d.decode(*part);
      const std::int32_t tail = a.tail(d.tokens());
      const std::int64_t most = a.most_units > 0 ? a.most_units : d.tokens() / 5;
      std::int64_t asked = 0, fetched = 0;
      for (std::size_t r = 0; r < 4; ++r) {
        const std::vector<std::int32_t> chosen = chosen_of(rows[r], a.head, tail);
        asked += static_cast<std::int64_t>(chosen.size()) / a.unit_tokens;
        fetched += newcomers(chosen, last[r]) / a.unit_tokens;
        EXPECT_LE(static_cast<std::int64_t>(chosen.size()) / a.unit_tokens, most) << a.part;
        last[r] = rows[r];
      }
      const Traffic traffic = part->take_traffic();
      EXPECT_EQ(traffic.asked_units, asked) << a.part << " step " << t;
      EXPECT_EQ(traffic.hit_units, asked - fetched) << a.part << " step " << t;
      EXPECT_EQ(traffic.fetched_bytes, fetched * a.unit_tokens * a.sides * 8 * 2) << a.part << " step " << t;
      EXPECT_GT(asked, 0) << a.part;
      EXPECT_EQ(part->take_traffic().asked_units, 0) << a.part << ": each is counted once";
    }
  }
}

// Nothing is lost between the tiers: with summaries left out, K and V of all tokens are in some tier, most of them not on the GPU.
TEST(Tiers, BytesOfAllTiersAreAllBytes) {
  constexpr std::int64_t kHeld = 2LL * 1000 * 2 * 64 * 2;
  const std::pair<std::string, std::string> parts[] = {{"infinigen", "{}"},
                                                       {"alisa", "{}"},
                                                       {"k_cache", "{top_tokens: 40}"},
                                                       {"retrieval_attention", "{sink_tokens: 8, recent_tokens: 64}"},
                                                       {"a2ats", "{}"},
                                                       {"pq_cache", "{}"},
                                                       {"spe_cache", "{}"},
                                                       {"shadow_kv", "{keys: fetched, budget_tokens: 200, outlier_chunks: 8}"},
                                                       {"sentence", "{budget_tokens: 128}"},
                                                       {"rekv", "{frame_tokens: 8, top_frames: 8, local_tokens: 100}"},
                                                       {"leo_am", "{disk_bits: 16}"}};
  for (const auto& [name, parameters] : parts) {
    auto part = make_part<SelectorRegistry>(name, parameters);
    KvStore store({4, 8, 2, 64, 16}, 1, 0, false);
    store.append(0, nullptr, nullptr, 1000, 0);
    const ModelShape model{4, 8, 2, 64, 16};
    const TierBytes bytes = part->resident_in_layer(2, model, store.rows(), {kHeld, 0, 0});
    const std::int64_t beside = bytes.gpu + bytes.host + bytes.disk - kHeld;
    EXPECT_GE(beside, 0) << name;
    EXPECT_LE(beside, kHeld * 3 / 10) << name;  // partial keys, codes, means and bounds
    EXPECT_GT(bytes.host + bytes.disk, kHeld / 3) << name;
    if (name == "alisa" || name == "k_cache" || name == "retrieval_attention") {
      EXPECT_EQ(beside, 0) << name;
    }
  }
}

TEST(Tiers, AnEmptyRowTakesNoBytes) {
  for (const Tiered& a : kTiered) {
    auto part = make_part<SelectorRegistry>(a.part, a.parameters);
    KvStore store({4, 8, 2, 64, 16}, 1, 0, false);
    const TierBytes bytes = part->resident_in_layer(2, {4, 8, 2, 64, 16}, store.rows(), {});
    EXPECT_EQ(bytes.host + bytes.disk, 0) << a.part;
  }
}

}  // namespace
}  // namespace kvlab::test
