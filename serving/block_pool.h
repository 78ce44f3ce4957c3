#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/zeroed_array.h"
#include "policies/block_cache/block_cache.h"
#include "serving/block_index.h"

namespace kvlab {

// Blocks of one replica: references, prefix index, eviction order (a BlockCache), and loose pages for cut caches. As in vLLM v1, a free
// block keeps its hash until it is taken, and equal content stays in two blocks.
class BlockPool {
 public:
  // pages_per_block: layers x KV heads.
  BlockPool(std::uint32_t num_blocks, std::int32_t pages_per_block, std::unique_ptr<BlockCache> cache);

  [[nodiscard]] std::int64_t num_blocks() const { return num_blocks_; }
  // Unreferenced blocks, also cached ones, and loose pages in whole blocks.
  [[nodiscard]] std::int64_t free_blocks() const { return num_free_ + (loose_pages_ == 0 ? 0 : loose_pages_ / pages_per_block_); }
  // Takes that cannot remove a block that lookups could find.
  [[nodiscard]] std::int64_t takes_before_loss() const {
    return loose_pages_ / pages_per_block_ + static_cast<std::int64_t>(blank_.size()) + num_blocks_ - num_begun_;
  }
  [[nodiscard]] std::int64_t used_blocks() const { return num_blocks() - free_blocks(); }
  [[nodiscard]] std::int64_t cached_blocks() const { return num_cached_; }  // unreferenced, with a hash
  [[nodiscard]] std::int64_t loose_pages() const { return loose_pages_; }
  [[nodiscard]] std::int64_t private_pages() const { return private_pages_; }
  [[nodiscard]] std::int32_t pages_per_block() const { return pages_per_block_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }
  [[nodiscard]] const BlockCache& cache() const { return *cache_; }

  [[nodiscard]] BlockId find(std::uint64_t key) {
    ++operations_;
    return index_.find(key);
  }
  [[nodiscard]] BlockId peek(std::uint64_t key) const { return index_.find(key); }
  void prefetch(std::uint64_t key) const { index_.prefetch(key); }
  void note_hit(BlockId block) {
    cache_->on_hit(block);
    ++operations_;
  }
  [[nodiscard]] bool is_referenced(BlockId block) const { return states_[index(block)].count > 0; }
  [[nodiscard]] bool has_key(BlockId block) const { return states_[index(block)].has_key(); }

  // A free block with an unchanged count still holds its last owner's tokens; it can be acquired if remembers_blank().
  [[nodiscard]] std::uint32_t takes(BlockId block) const { return states_[index(block)].takes; }
  [[nodiscard]] bool remembers_blank() const { return orders_blank_; }

  void acquire(BlockId block) {
    ++operations_;
    if (states_[index(block)].count++ == 0) {
      --num_free_;
      if (states_[index(block)].has_key()) --num_cached_;
      cache_->on_acquire(block);
    }
  }
  // One reference, no key: loose pages first, then blank blocks, then the cache's victim. free_blocks() must be positive.
  BlockId take();
  void take(std::int64_t count, std::vector<BlockId>& blocks);
  void take_one(std::vector<BlockId>& blocks) {
    if (prefers_runs_) return take(1, blocks);
    blocks.push_back(take());
  }
  // Referenced blocks become visible to lookups, with keys that follow each other in one group of the index.
  void publish(std::span<const BlockId> blocks, std::uint64_t key, std::uint32_t depth, double cost_s);
  void publish(BlockId block, std::uint64_t key, std::uint32_t depth, double cost_s) { publish(std::span(&block, 1), key, depth, cost_s); }
  // A block without references is free and keeps its key.
  void release(BlockId block);
  // Evicts the deepest block of a prefix first.
  void release_reversed(const std::vector<BlockId>& blocks);

  // Private, unhashed pages. free_blocks() must cover blocks_for_pages(pages).
  void take_pages(std::int64_t pages);
  void return_pages(std::int64_t pages);
  // Receives blocks that lose their content.
  std::vector<BlockId>* split_log = nullptr;
  // free_blocks() after taking `pages`; negative: not possible.
  [[nodiscard]] std::int64_t free_after_pages(std::int64_t pages) const;

  // Conservation: every block is free, referenced or split. Throws InternalError. Returns the number of references. O(blocks).
  std::int64_t check() const;

 private:
  static constexpr std::uint32_t kNoKey = 0, kSplit = 1, kFirstPlace = 2;
  struct State {
    std::uint32_t place;  // its key's in the index, from kFirstPlace on
    std::uint32_t count;  // references
    std::uint32_t takes;  // detects changed content
    [[nodiscard]] bool has_key() const { return place >= kFirstPlace; }
  };
  BlockId take_free();
  // A victim of the cache becomes a blank block and loses its hash.
  void forget(State& victim, BlockId block) {
    if (!victim.has_key()) return;
    index_.erase(victim.place - kFirstPlace, block);
    victim.place = kNoKey;
    --num_cached_;
    ++evictions_;
  }
  BlockId join_loose_pages();
  void split_one();

  std::unique_ptr<BlockCache> cache_;
  BlockIndex index_;
  ZeroedArray<State> states_;
  std::vector<BlockId> blank_;               // free, without a key, taken before; unused if the cache orders them
  std::vector<BlockId> victims_, released_;  // of the current call
  std::vector<BlockId> split_;               // with loose or private pages
  bool orders_blank_ = false, prefers_runs_ = false, ignores_insertions_ = false;
  std::int32_t pages_per_block_;
  std::int64_t num_blocks_, num_begun_ = 0;  // blocks from num_begun_ on were never taken, unless the cache orders them
  std::int64_t num_free_ = 0, num_cached_ = 0;
  std::int64_t loose_pages_ = 0, private_pages_ = 0;
  std::uint64_t operations_ = 0, evictions_ = 0;
};

}  // namespace kvlab
