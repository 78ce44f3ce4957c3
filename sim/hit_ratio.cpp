#include "sim/hit_ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>

#include "base/error.h"
#include "serving/block_index.h"
#include "traces/block_hashes.h"

namespace kvlab {

namespace {

// In lookups.
constexpr std::size_t kPrefetchAhead = 16;
constexpr std::size_t kRequestsPerTurn = 1024;

// Passes over a request's chain, each prefetching for the next: the index exceeds caches, its slots are in no order.
class HitRatioRun {
 public:
  HitRatioRun(BlockCache& cache, std::uint32_t capacity_blocks)
      : cache_(cache), blocks_(capacity_blocks), orders_blank_(cache.orders_blank_blocks()) {
    cache.reset(capacity_blocks);
    index_.reset(capacity_blocks);
    chain_blocks_.reserve(capacity_blocks);
    evicted_.reserve(capacity_blocks);
  }

  void process(std::span<const std::uint64_t> chain) {
    ++result.requests;
    result.lookups += chain.size();
    const auto taken = chain.first(std::min(chain.size(), blocks_.size()));
    result.beyond_capacity += chain.size() - taken.size();
    look_up(taken);
    touch();
    insert_missing(taken);
    update_index(taken);
    release();
  }

  HitRatio result;

 private:
  struct Block {
    std::uint64_t key = 0;
    bool has_key = false;
  };
  struct Evicted {
    std::uint64_t key;
    BlockId block;
  };

  void look_up(std::span<const std::uint64_t> chain) {
    chain_blocks_.resize(chain.size());
    missing_.clear();
    for (std::size_t i = 0; i < std::min(chain.size(), kPrefetchAhead); ++i) index_.prefetch(chain[i]);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      if (i + kPrefetchAhead < chain.size()) index_.prefetch(chain[i + kPrefetchAhead]);
      chain_blocks_[i] = index_.find(chain[i]);
      if (chain_blocks_[i] == kNoBlock) missing_.push_back(static_cast<std::uint32_t>(i));
    }
    const std::uint64_t hits = missing_.empty() ? chain.size() : missing_.front();
    result.hits += hits;
    result.insertions += missing_.size();
    result.orphans += chain.size() - hits - missing_.size();
  }

  void touch() {
    for (const BlockId block : chain_blocks_) {
      if (block == kNoBlock) continue;
      cache_.on_hit(block);
      cache_.on_acquire(block);
    }
  }

  void insert_missing(std::span<const std::uint64_t> chain) {
    for (const std::uint32_t depth : missing_) {
      const BlockId block = take(chain[depth]);
      chain_blocks_[depth] = block;
      blocks_[index(block)] = {chain[depth], true};
      cache_.on_insert(block, chain[depth], depth, 0);
    }
  }

  void update_index(std::span<const std::uint64_t> chain) {
    for (const Evicted& old : evicted_) index_.erase(old.key, old.block);
    for (const std::uint32_t depth : missing_) index_.insert(chain[depth], chain_blocks_[depth]);
    result.evictions += evicted_.size();
    evicted_.clear();
  }

  void release() {
    for (auto block = chain_blocks_.rbegin(); block != chain_blocks_.rend(); ++block) cache_.on_release(*block);
  }

  // Blank, or the cache's victim, which exists: a request has at most the cache's blocks.
  BlockId take(std::uint64_t incoming) {
    if (!orders_blank_ && num_used_ < blocks_.size()) return BlockId{num_used_++};
    const BlockId block = cache_.victim(incoming);
    const Block& old = blocks_[index(block)];
    if (old.has_key) {
      index_.prefetch(old.key);
      evicted_.push_back({old.key, block});
    }
    return block;
  }

  BlockCache& cache_;
  BlockIndex index_;
  std::vector<Block> blocks_;          // [capacity]
  std::vector<BlockId> chain_blocks_;  // of the request, by depth
  std::vector<std::uint32_t> missing_;
  std::vector<Evicted> evicted_;
  std::uint32_t num_used_ = 0;  // blank blocks handed out, if the cache does not order them
  bool orders_blank_;
};

std::vector<std::uint64_t> lookups_of(const HitRatioTrace& trace, std::uint32_t capacity_blocks) {
  std::vector<std::uint64_t> lookups;
  lookups.reserve(trace.keys.size());
  for (std::size_t r = 0; r < trace.num_requests(); ++r) {
    const auto chain = trace.chain(r);
    const auto taken = chain.first(std::min<std::size_t>(chain.size(), capacity_blocks));
    lookups.insert(lookups.end(), taken.begin(), taken.end());
  }
  return lookups;
}

void append_chain(HitRatioTrace& trace, const TraceRequest& request) {
  const auto full = static_cast<std::uint32_t>(request.prompt_tokens / trace.block_tokens);
  const std::uint32_t num_blocks = std::min(full, num_block_hashes(request, trace.block_tokens));
  if (trace.keys.size() + num_blocks > std::numeric_limits<std::uint32_t>::max() - 2)
    throw InputError("the trace has more than 4,294,967,293 blocks: use larger blocks or fewer requests");
  for (std::uint32_t i = 0; i < num_blocks; ++i)
    trace.keys.push_back(block_hash(request.hash_tokens, request.hashes, trace.block_tokens, i));
  trace.request_begin.push_back(static_cast<std::uint32_t>(trace.keys.size()));
  trace.prompt_tokens += request.prompt_tokens;
}

// A key identifies a prefix, so it cannot repeat in a chain.
void check_distinct(std::span<const std::uint64_t> hashes, std::size_t request, std::vector<std::uint64_t>& sorted) {
  sorted.assign(hashes.begin(), hashes.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) return;
  throw InputError(
      fmt::format("request {} of the trace (from 1) names the same content twice: each hash must stand for the whole prefix", request + 1));
}

}  // namespace

void HitGroups::join(const std::string& kind, const std::string& name, std::int32_t prompt_tokens) {
  const auto [found, is_new] = places_.try_emplace(kind + "\n" + name, static_cast<std::uint32_t>(groups_.size()));
  if (is_new) groups_.push_back({kind, name});
  HitGroup& group = groups_[found->second];
  ++group.requests;
  group.prompt_tokens += prompt_tokens;
  of_requests_.push_back(found->second);
}

void HitGroups::add(const TraceRequest& r) {
  if (has_fact(r.facts, Fact::kClass)) join("class", std::string(r.facts->request_class.text()), r.prompt_tokens);
  if (has_fact(r.facts, Fact::kClient)) join("client", std::to_string(r.facts->client), r.prompt_tokens);
  if (r.session >= 0) join("turn", r.is_follow_up ? "later" : "first", r.prompt_tokens);
  begin_.push_back(of_requests_.size());
}

void HitGroups::count(std::size_t request, std::uint64_t lookups, std::uint64_t hits, std::vector<HitGroup>& groups) const {
  if (request + 1 >= begin_.size()) return;
  for (std::uint64_t i = begin_[request]; i < begin_[request + 1]; ++i) {
    HitGroup& group = groups[of_requests_[i]];
    group.lookups += lookups;
    group.hits += hits;
  }
}

HitRatioTrace load_hit_ratio_trace(TraceSource& source, std::int32_t block_tokens, const std::function<void()>& each_turn) {
  HitRatioTrace trace;
  trace.block_tokens = block_tokens;
  std::vector<std::uint64_t> sorted;
  bool has_hashes = false;
  for (TraceRequest request; source.next(request);) {
    if (each_turn && trace.num_requests() % kRequestsPerTurn == 0) each_turn();
    has_hashes = has_hashes || !request.hashes.empty();
    check_block_tokens(request, block_tokens);
    check_distinct(request.hashes, trace.num_requests(), sorted);
    append_chain(trace, request);
    trace.groups.add(request);
  }
  if (!has_hashes)
    throw InputError("the trace has no content hashes, so nothing in it can be shared: hit ratios need a trace such as Mooncake's");
  return trace;
}

HitRatio run_hit_ratio(BlockCache& cache, const HitRatioTrace& trace, std::uint32_t capacity_blocks,
                       const std::function<void()>& each_turn) {
  // With a block per lookup a cache never evicts.
  const auto useful = static_cast<std::uint32_t>(std::clamp<std::size_t>(trace.keys.size(), 1, capacity_blocks));
  HitRatioRun run(cache, useful);
  run.result.groups = trace.groups.groups();
  if (cache.needs_future()) cache.set_future(lookups_of(trace, useful));
  for (std::size_t r = 0; r < trace.num_requests(); ++r) {
    if (each_turn && r % kRequestsPerTurn == 0) each_turn();
    const std::uint64_t hits_before = run.result.hits;
    run.process(trace.chain(r));
    if (!trace.groups.is_empty()) trace.groups.count(r, trace.chain(r).size(), run.result.hits - hits_before, run.result.groups);
  }
  for (HitGroup& group : run.result.groups) group.hit_tokens = static_cast<std::int64_t>(group.hits) * trace.block_tokens;
  run.result.hit_tokens = static_cast<std::int64_t>(run.result.hits) * trace.block_tokens;
  run.result.prompt_tokens = trace.prompt_tokens;
  return run.result;
}

HitRatioRow run_hit_ratio(Params& experiment, const HitRatioTrace& trace, const std::function<void()>& each_turn) {
  auto [name, params] = experiment.named("block_caches", "lru", "which cached block is given up; `kvlab list block_caches`");
  constexpr auto kMaxBlocks = std::uint32_t{1} << 30;
  const auto capacity = experiment.required<std::uint32_t>("capacity_blocks", 1, kMaxBlocks, "size of the cache");
  const auto bytes =
      experiment.optional<std::int64_t>("block_bytes", 0, 0, std::int64_t{1} << 40, "KV bytes of one block; 0: capacity_gib stays 0");
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const double gib = static_cast<double>(capacity) * static_cast<double>(bytes) / kGib;
  const std::unique_ptr<BlockCache> cache = BlockCacheRegistry::make(name, params, "block cache");
  return {name, capacity, gib, run_hit_ratio(*cache, trace, capacity, each_turn)};
}

}  // namespace kvlab
