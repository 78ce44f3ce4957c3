#include "sim/hit_ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "traces/block_hashes.h"

namespace kvlab {

namespace {

constexpr std::size_t kRequestsPerTurn = 1024;
constexpr std::uint32_t kNoContent = std::numeric_limits<std::uint32_t>::max();

// The key of a content for block caches, which use 0 for none.
std::uint64_t key_of(std::uint32_t content) { return std::uint64_t{content} + 1; }

class HitRatioRun {
 public:
  HitRatioRun(BlockCache& cache, std::uint32_t capacity_blocks, std::uint32_t num_contents)
      : cache_(cache),
        places_(num_contents, kNoBlock),
        contents_(capacity_blocks, kNoContent),
        orders_blank_(cache.orders_blank_blocks()) {}

  void process(std::span<const std::uint32_t> chain) {
    ++result.requests;
    result.lookups += chain.size();
    const auto taken = chain.first(std::min(chain.size(), contents_.size()));
    result.beyond_capacity += chain.size() - taken.size();
    look_up(taken);
    insert_missing(taken);
    cache_.on_releases(blocks_);
  }

  HitRatio result;

 private:
  // All blocks found are referenced before the first victim is chosen.
  void look_up(std::span<const std::uint32_t> chain) {
    blocks_.resize(chain.size());
    std::uint64_t found = 0, hits = 0;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const BlockId block = places_[chain[i]];
      block_at(i) = block;
      if (block == kNoBlock) continue;
      hits += found++ == i;
      cache_.on_hit(block);
      cache_.on_acquire(block);
    }
    result.hits += hits;
    result.insertions += chain.size() - found;
    result.orphans += found - hits;
  }

  void insert_missing(std::span<const std::uint32_t> chain) {
    for (std::size_t depth = 0; depth < chain.size(); ++depth) {
      if (block_at(depth) != kNoBlock) continue;
      const std::uint32_t content = chain[depth];
      const BlockId block = take(key_of(content));
      block_at(depth) = block;
      contents_[index(block)] = content;
      places_[content] = block;
      cache_.on_insert(block, key_of(content), static_cast<std::uint32_t>(depth), 0);
    }
  }

  // Blank, or the cache's victim, which exists: a request has at most the cache's blocks.
  BlockId take(std::uint64_t incoming) {
    if (!orders_blank_ && num_used_ < contents_.size()) return BlockId{num_used_++};
    const BlockId block = cache_.victim(incoming);
    if (const std::uint32_t old = contents_[index(block)]; old != kNoContent) {
      places_[old] = kNoBlock;
      ++result.evictions;
    }
    return block;
  }

  BlockId& block_at(std::size_t depth) { return blocks_[blocks_.size() - 1 - depth]; }

  BlockCache& cache_;
  std::vector<BlockId> places_;          // by content
  std::vector<std::uint32_t> contents_;  // by block
  std::vector<BlockId> blocks_;          // of the request, deepest first
  std::uint32_t num_used_ = 0;           // blank blocks handed out, if the cache does not order them
  bool orders_blank_;
};

std::vector<std::uint64_t> lookups_of(const HitRatioTrace& trace, std::uint32_t capacity_blocks) {
  std::vector<std::uint64_t> lookups;
  lookups.reserve(trace.num_lookups);
  std::vector<std::uint32_t> chain;
  for (std::size_t r = 0; r < trace.num_requests(); ++r) {
    trace.chain(r, chain);
    if (chain.size() > capacity_blocks) chain.resize(capacity_blocks);
    std::transform(chain.begin(), chain.end(), std::back_inserter(lookups), key_of);
  }
  return lookups;
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

void HitRatioTrace::chain(std::size_t request, std::vector<std::uint32_t>& contents) const {
  contents.clear();
  for (std::uint32_t i = request_begin[request]; i < request_begin[request + 1]; ++i) {
    const std::size_t before = contents.size();
    contents.resize(before + runs[i].count);
    std::iota(contents.begin() + static_cast<std::ptrdiff_t>(before), contents.end(), runs[i].first);
  }
}

void HitRatioTraceBuilder::add(const TraceRequest& request) {
  check_block_tokens(request, trace.block_tokens);
  check_distinct(request.hashes);
  const auto full = static_cast<std::uint32_t>(request.prompt_tokens / trace.block_tokens);
  add_blocks(request, std::min(full, num_block_hashes(request, trace.block_tokens)));
  trace.request_begin.push_back(static_cast<std::uint32_t>(trace.runs.size()));
  trace.prompt_tokens += request.prompt_tokens;
  trace.groups.add(request);
}

// A key identifies a prefix, so it cannot repeat in a chain.
void HitRatioTraceBuilder::check_distinct(std::span<const std::uint64_t> hashes) {
  sorted_.assign(hashes.begin(), hashes.end());
  std::sort(sorted_.begin(), sorted_.end());
  if (std::adjacent_find(sorted_.begin(), sorted_.end()) == sorted_.end()) return;
  throw InputError(fmt::format("request {} of the trace (from 1) names the same content twice: each hash must identify the whole prefix",
                               trace.num_requests() + 1));
}

// Parts of a hashed chunk are numbered in groups of up to 32, which share all but the last five bits of their block_hash().
void HitRatioTraceBuilder::add_blocks(const TraceRequest& request, std::uint32_t num_blocks) {
  constexpr std::uint32_t kGroup = 32;
  const auto parts = static_cast<std::uint32_t>(std::max(1, request.hash_tokens / trace.block_tokens));
  for (std::uint32_t i = 0; i < num_blocks;) {
    const std::uint32_t in_group = std::min(kGroup, parts - i % parts);
    const std::uint64_t key = block_hash(request.hash_tokens, request.hashes, trace.block_tokens, i);
    append(parts == 1 ? key : key | in_group % kGroup, in_group, std::min(in_group, num_blocks - i));
    i += in_group;
  }
}

// Of a group of `parts` blocks the first `count`.
void HitRatioTraceBuilder::append(std::uint64_t key, std::uint32_t parts, std::uint32_t count) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max() - 2;
  if (trace.num_lookups + count > kMost || std::uint64_t{trace.num_contents} + parts > kMost)
    throw InputError("the trace has more than 4,294,967,293 blocks: use larger blocks or fewer requests");
  if (numbers_.size() == numbers_.max_keys()) numbers_.reserve(std::max<std::size_t>(1024, 2 * numbers_.size()));
  std::uint32_t& first = numbers_.add(key).value.first;
  if (first == Number{}.first) {
    first = trace.num_contents;
    trace.num_contents += parts;
  }
  trace.num_lookups += count;
  const bool has_run = trace.runs.size() > trace.request_begin.back();
  if (has_run && trace.runs.back().first + trace.runs.back().count == first)
    trace.runs.back().count += count;
  else
    trace.runs.push_back({first, count});
}

HitRatioTrace load_hit_ratio_trace(TraceSource& source, std::int32_t block_tokens, const std::function<void()>& each_turn) {
  HitRatioTraceBuilder builder(block_tokens);
  bool has_hashes = false;
  for (TraceRequest request; source.next(request);) {
    if (each_turn && builder.trace.num_requests() % kRequestsPerTurn == 0) each_turn();
    has_hashes = has_hashes || !request.hashes.empty();
    builder.add(request);
  }
  if (!has_hashes)
    throw InputError("the trace has no content hashes, so nothing in it can be shared: hit ratios need a trace such as Mooncake's");
  return std::move(builder.trace);
}

HitRatio run_hit_ratio(BlockCache& cache, const HitRatioTrace& trace, std::uint32_t capacity_blocks,
                       const std::function<void()>& each_turn) {
  // With a block per lookup a cache never evicts.
  const auto useful = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(trace.num_lookups, 1, capacity_blocks));
  cache.reset(useful);
  if (cache.needs_future()) cache.set_future(lookups_of(trace, useful));
  HitRatioRun run(cache, useful, trace.num_contents);
  run.result.groups = trace.groups.groups();
  std::vector<std::uint32_t> chain;
  for (std::size_t r = 0; r < trace.num_requests(); ++r) {
    if (each_turn && r % kRequestsPerTurn == 0) each_turn();
    const std::uint64_t hits_before = run.result.hits;
    trace.chain(r, chain);
    run.process(chain);
    if (!trace.groups.is_empty()) trace.groups.count(r, chain.size(), run.result.hits - hits_before, run.result.groups);
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
