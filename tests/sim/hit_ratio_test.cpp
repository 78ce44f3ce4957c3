#include "sim/hit_ratio.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/random.h"
#include "tests/memory_run.h"
#include "traces/block_hashes.h"

namespace kvlab {
namespace {

const std::vector<std::string> kAll = {"arc", "belady", "fifo", "gdsf", "lfu", "lru", "s3fifo"};

// Requests as paths in a tree: key i names the path's first i + 1 steps, so equal keys mean equal prefixes.
using Path = std::vector<std::uint32_t>;
HitRatioTrace trace_of(const std::vector<Path>& paths, std::vector<TraceRequest> requests = {}) {
  requests.resize(paths.size());
  HitRatioTraceBuilder builder(16);
  for (std::size_t r = 0; r < paths.size(); ++r) {
    std::uint64_t key = 1;
    std::vector<std::uint64_t> hashes;
    for (const std::uint32_t step : paths[r]) hashes.push_back(key = hash_combine(key, step));
    requests[r].prompt_tokens = std::max(requests[r].prompt_tokens, static_cast<std::int32_t>(16 * hashes.size()));
    requests[r].hash_tokens = 16;
    requests[r].hashes = hashes;
    builder.add(requests[r]);
  }
  return std::move(builder.trace);
}

std::vector<std::uint32_t> chain_of(const HitRatioTrace& trace, std::size_t request) {
  std::vector<std::uint32_t> contents;
  trace.chain(request, contents);
  return contents;
}

HitRatio run(const std::string& cache, const HitRatioTrace& trace, std::uint32_t capacity) {
  Params none = Params::empty("block cache '" + cache + "'");
  return run_hit_ratio(*BlockCacheRegistry::make(cache, none, "block cache"), trace, capacity);
}

void expect_conserved(const HitRatio& r, std::uint32_t capacity) {
  EXPECT_EQ(r.lookups, r.hits + r.orphans + r.insertions + r.beyond_capacity);
  EXPECT_EQ(r.misses(), r.lookups - r.hits);
  EXPECT_LE(r.evictions, r.insertions);
  EXPECT_LE(r.insertions - r.evictions, capacity);
}

// Prompts of two blocks (32 of 40 tokens). Client 7 sends the first, third and fourth: the third repeats its own, the fourth client 8's,
// and is a later turn.
TEST(HitRatio, GroupsByHand) {
  RequestFacts seven, eight;
  seven.client = 7, eight.client = 8;
  std::vector<TraceRequest> requests(4);
  for (TraceRequest& request : requests) {
    request.prompt_tokens = 40;
    request.facts = &seven;
  }
  requests[1].facts = &eight;
  requests[3].session = 1;
  requests[3].is_follow_up = true;
  const HitRatioTrace trace = trace_of({{1, 2}, {3, 4}, {1, 2}, {3, 4}}, requests);
  const std::vector<HitGroup> found = run("lru", trace, 8).groups;
  EXPECT_EQ(found, (std::vector<HitGroup>{
                       {"client", "7", 3, 6, 4, 64, 120}, {"client", "8", 1, 2, 0, 0, 40}, {"turn", "later", 1, 2, 2, 32, 40}}));
  EXPECT_TRUE(run("lru", trace_of({{1}}), 8).groups.empty());
}

// 3 blocks: [1 2] goes in, [1 3] hits block 1, [4 5] evicts 2 and 3 (deeper and older first), [1 3] hits 1 and evicts 5.
TEST(HitRatio, LruOnChainsByHand) {
  const HitRatio r = run("lru", trace_of({{1, 2}, {1, 3}, {4, 5}, {1, 3}}), 3);
  EXPECT_EQ(std::tuple(r.requests, r.lookups, r.hits, r.insertions, r.evictions, r.orphans), std::tuple(4U, 8U, 2U, 6U, 3U, 0U));
  EXPECT_DOUBLE_EQ(r.hit_frac(), 0.25);
  EXPECT_EQ(r.hit_tokens, 32);
  EXPECT_DOUBLE_EQ(r.token_hit_frac(), 0.25);
}

// fifo evicts the front of the chain first; what is left of it is found but cannot be used.
TEST(HitRatio, ABlockBehindAMissIsNoHit) {
  const HitRatio r = run("fifo", trace_of({{1, 2}, {3}, {1, 2}}), 2);
  EXPECT_EQ(std::tuple(r.hits, r.orphans, r.insertions, r.evictions), std::tuple(0U, 1U, 4U, 2U));
}

TEST(HitRatio, OfARequestLongerThanTheCacheTheTailTakesNoPart) {
  for (const std::string& cache : kAll) {
    const HitRatio r = run(cache, trace_of({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}), 3);
    EXPECT_EQ(std::tuple(r.lookups, r.hits, r.insertions, r.beyond_capacity, r.evictions), std::tuple(10U, 3U, 3U, 4U, 0U)) << cache;
  }
}

TEST(HitRatio, EmptyTraceAndEmptyRequests) {
  for (const std::string& cache : kAll) {
    EXPECT_EQ(run(cache, trace_of({}), 1), HitRatio{}) << cache;
    const HitRatio r = run(cache, trace_of({{}, {1}, {}}), 1);
    EXPECT_EQ(std::tuple(r.requests, r.insertions, r.hit_frac()), std::tuple(3U, 1U, 0.0)) << cache;
  }
}

// The rules again, as plainly as they can be put, for lru: a list of keys, most recent last.
std::uint64_t lru_hits_by_definition(const std::vector<Path>& paths, std::size_t capacity) {
  std::vector<std::uint32_t> resident;
  std::uint64_t hits = 0;
  const HitRatioTrace trace = trace_of(paths);
  for (std::size_t r = 0; r < trace.num_requests(); ++r) {
    auto taken = chain_of(trace, r);
    taken.resize(std::min(taken.size(), capacity));
    bool is_prefix = true;
    for (const std::uint32_t key : taken) {
      is_prefix = is_prefix && std::find(resident.begin(), resident.end(), key) != resident.end();
      hits += is_prefix;
    }
    for (const std::uint32_t key : taken) std::erase(resident, key);
    resident.insert(resident.end(), taken.rbegin(), taken.rend());
    if (resident.size() > capacity) resident.erase(resident.begin(), resident.end() - static_cast<std::ptrdiff_t>(capacity));
  }
  return hits;
}

rc::Gen<std::vector<Path>> chain_workloads() {
  return rc::gen::container<std::vector<Path>>(rc::gen::container<Path>(rc::gen::inRange<std::uint32_t>(0, 3)));
}

RC_GTEST_PROP(HitRatio, LruFollowsItsDefinition, ()) {
  const auto paths = *rc::gen::resize(40, chain_workloads());
  const auto capacity = *rc::gen::inRange<std::uint32_t>(1, 40);
  RC_ASSERT(run("lru", trace_of(paths), capacity).hits == lru_hits_by_definition(paths, capacity));
}

RC_GTEST_PROP(HitRatio, ALargerLruNeverHitsLess, ()) {
  const HitRatioTrace trace = trace_of(*rc::gen::resize(40, chain_workloads()));
  std::uint64_t smaller = 0;
  for (std::uint32_t capacity = 1; capacity <= 48; ++capacity) {
    const std::uint64_t hits = run("lru", trace, capacity).hits;
    RC_ASSERT(hits >= smaller);
    smaller = hits;
  }
}

RC_GTEST_PROP(HitRatio, NothingBeatsBelady, ()) {
  const HitRatioTrace trace = trace_of(*rc::gen::resize(30, chain_workloads()));
  for (const std::uint32_t capacity : {1U, 2U, 3U, 5U, 8U, 13U, 21U}) {
    const HitRatio best = run("belady", trace, capacity);
    RC_ASSERT(best.orphans == 0U);  // the kept part of a chain is a prefix
    for (const std::string& cache : kAll) {
      const HitRatio r = run(cache, trace, capacity);
      expect_conserved(r, capacity);
      RC_ASSERT(r.hits <= best.hits);
    }
  }
}

// Most hits that any sequence of choices can have: all subsets of the resident blocks, request by request.
std::uint64_t best_by_search(const HitRatioTrace& trace, std::size_t capacity) {
  using Keys = std::set<std::uint32_t>;
  std::map<Keys, std::uint64_t> states{{{}, 0}};
  for (std::size_t r = 0; r < trace.num_requests(); ++r) {
    auto chain = chain_of(trace, r);
    chain.resize(std::min(chain.size(), capacity));
    std::map<Keys, std::uint64_t> next;
    for (const auto& [resident, hits] : states) {
      std::uint64_t prefix = 0;
      while (prefix < chain.size() && resident.contains(chain[prefix])) ++prefix;
      const Keys pinned(chain.begin(), chain.end());
      std::vector<std::uint32_t> others;
      std::set_difference(resident.begin(), resident.end(), pinned.begin(), pinned.end(), std::back_inserter(others));
      const std::size_t kept = std::min(others.size(), capacity - pinned.size());
      for (std::uint32_t choice = 0; choice < (1U << others.size()); ++choice) {
        if (static_cast<std::size_t>(std::popcount(choice)) != kept) continue;
        Keys after = pinned;
        for (std::size_t i = 0; i < others.size(); ++i) {
          if (choice >> i & 1U) after.insert(others[i]);
        }
        std::uint64_t& best = next[after];
        best = std::max(best, hits + prefix);
      }
    }
    states = std::move(next);
  }
  std::uint64_t best = 0;
  for (const auto& [resident, hits] : states) best = std::max(best, hits);
  return best;
}

RC_GTEST_PROP(HitRatio, BeladyIsTheBestOfAllChoices, ()) {
  const auto paths =
      *rc::gen::container<std::vector<Path>>(8, rc::gen::resize(4, rc::gen::container<Path>(rc::gen::inRange<std::uint32_t>(0, 2))));
  const auto capacity = *rc::gen::inRange<std::uint32_t>(1, 6);
  const HitRatioTrace trace = trace_of(paths);
  RC_ASSERT(run("belady", trace, capacity).hits == best_by_search(trace, capacity));
}

// 10,000 requests in 300 conversations of growing length under 8 shared system prompts of 4 blocks, with Zipf popularity.
HitRatioTrace conversations() {
  std::vector<Path> paths, of_session(300);
  const Zipf popular(of_session.size(), 0.8);
  for (std::uint64_t r = 0; r < 10'000; ++r) {
    Path& path = of_session[popular({.seed = 7, .request = r}) - 1];
    if (path.empty() || path.size() > 60) {
      path.assign(4, static_cast<std::uint32_t>(Draw{.seed = 7, .request = r, .step = 1}.below(8)));
    }
    const std::uint64_t added = 1 + Draw{.seed = 7, .request = r, .step = 2}.below(6);
    for (std::uint64_t i = 0; i < added; ++i) path.push_back(static_cast<std::uint32_t>(100 + r * 8 + i));
    paths.push_back(path);
  }
  return trace_of(paths);
}

// Our own figures, to see any change of behaviour; the order among them is checked above. Where everything fits the rest is content seen
// for the first time, whatever the cache.
TEST(HitRatio, GoldenMissCounts) {
  const HitRatioTrace trace = conversations();
  const std::map<std::string, std::vector<std::uint64_t>> expected = {
      {"arc", {270'630, 179'916, 90'028}},     {"belady", {248'273, 119'325, 45'948}}, {"fifo", {298'152, 218'993, 119'035}},
      {"gdsf", {269'965, 188'408, 105'053}},   {"lfu", {272'597, 263'433, 221'829}},   {"lru", {288'879, 187'663, 84'832}},
      {"s3fifo", {273'150, 188'310, 107'602}},
  };
  for (const auto& [cache, misses] : expected) {
    std::vector<std::uint64_t> found;
    for (const std::uint32_t capacity : {100U, 1'000U, 5'000U}) found.push_back(run(cache, trace, capacity).misses());
    EXPECT_EQ(found, misses) << cache;
    EXPECT_EQ(run(cache, trace, 200'000).misses(), run("lru", trace, 200'000).misses()) << cache;
  }
}

TEST(HitRatio, AHugeCacheCostsNoMoreThanTheTrace) {
  for (const std::string& cache : kAll) EXPECT_EQ(run(cache, trace_of({{1}, {1}, {2}}), 1U << 30).hits, 1U) << cache;
}

TraceRequest row(std::int32_t prompt_tokens, std::int32_t hash_tokens, std::span<const std::uint64_t> hashes) {
  TraceRequest r = test::request_at(0, prompt_tokens, 1);
  r.hash_tokens = hash_tokens;
  r.hashes = hashes;
  return r;
}
test::VectorTrace one_row(std::int32_t prompt_tokens, std::int32_t hash_tokens, std::span<const std::uint64_t> hashes) {
  return test::VectorTrace({row(prompt_tokens, hash_tokens, hashes)});
}

TEST(HitRatioTrace, SplitsAndJoinsHashesAndKeepsFullPromptBlocksOnly) {
  const std::vector<std::uint64_t> hashes = {11, 12, 13};
  const auto num_blocks = [&](std::int32_t prompt_tokens, std::int32_t block_tokens) {
    test::VectorTrace source = one_row(prompt_tokens, 64, hashes);
    const HitRatioTrace trace = load_hit_ratio_trace(source, block_tokens);
    EXPECT_EQ(trace.prompt_tokens, prompt_tokens);
    EXPECT_EQ(trace.num_lookups, chain_of(trace, 0).size());
    return trace.num_lookups;
  };
  EXPECT_EQ(num_blocks(191, 64), 2U);
  EXPECT_EQ(num_blocks(192, 64), 3U);
  EXPECT_EQ(num_blocks(100, 64), 1U);  // the rest was generated
  EXPECT_EQ(num_blocks(191, 128), 1U);
  EXPECT_EQ(num_blocks(100, 32), 3U);
  EXPECT_EQ(num_blocks(15, 16), 0U);
  EXPECT_THROW(num_blocks(191, 48), InputError);
}

// Contents are equal exactly if their block_hash() is, and new ones of a request follow one another.
TEST(HitRatioTrace, NumbersContents) {
  const std::vector<std::uint64_t> first = {11, 12, 13}, second = {11, 12, 14}, third = {21, 12};
  for (const std::int32_t hash_tokens : {8, 16, 32, 16 * 40}) {
    const std::int32_t prompt_tokens = 3 * hash_tokens;
    test::VectorTrace source(
        {row(prompt_tokens, hash_tokens, first), row(prompt_tokens - 16, hash_tokens, second), row(2 * hash_tokens, hash_tokens, third)});
    const HitRatioTrace trace = load_hit_ratio_trace(source, 16);
    EXPECT_EQ(trace.runs.front(), (ContentRun{0, static_cast<std::uint32_t>(prompt_tokens / 16)})) << hash_tokens;
    std::map<std::uint64_t, std::uint32_t> numbers;
    std::set<std::uint32_t> distinct;
    for (const auto& [request, hashes] : {std::pair(0U, first), {1U, second}, {2U, third}}) {
      const auto chain = chain_of(trace, request);
      for (std::uint32_t i = 0; i < chain.size(); ++i) {
        EXPECT_EQ(numbers.try_emplace(block_hash(hash_tokens, hashes, 16, i), chain[i]).first->second, chain[i]) << hash_tokens;
        distinct.insert(chain[i]);
      }
    }
    EXPECT_EQ(distinct.size(), numbers.size()) << hash_tokens;
    EXPECT_LT(*distinct.rbegin(), trace.num_contents) << hash_tokens;
  }
}

TEST(HitRatioTrace, RefusesWhatHasNoHitRatio) {
  test::VectorTrace nothing_named = one_row(100, 0, {});
  EXPECT_THROW(load_hit_ratio_trace(nothing_named, 16), InputError);
  const std::vector<std::uint64_t> twice = {5, 6, 5};
  test::VectorTrace repeats = one_row(48, 16, twice);
  EXPECT_THROW(load_hit_ratio_trace(repeats, 16), InputError);
}

TEST(HitRatio, RowsNameTheCacheAndItsSize) {
  Params p = Params::from_text("{block_caches: lru, capacity_blocks: 2, block_bytes: 536870912}");
  const HitRatioRow row = run_hit_ratio(p, trace_of({{1, 2}, {1, 2}}));
  EXPECT_EQ(std::tuple(row.cache, row.capacity_blocks, row.capacity_gib), std::tuple("lru", 2U, 1.0));
}

TEST(HitRatio, ExperimentNamesTheCacheAndItsParameters) {
  const HitRatioTrace trace = trace_of({{1}, {2}, {1}});
  Params p = Params::from_text("{block_caches: {s3fifo: {promote_hits: 1}}, capacity_blocks: 2}");
  EXPECT_EQ(run_hit_ratio(p, trace).result.hits, 1U);
  for (const char* wrong : {"{block_caches: lruu, capacity_blocks: 2}", "{block_caches: lru, capacity_blocks: 0}"}) {
    Params refused = Params::from_text(wrong);
    EXPECT_THROW(run_hit_ratio(refused, trace), InputError) << wrong;
  }
}

}  // namespace
}  // namespace kvlab
