#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "policies/block_cache/block_cache.h"

namespace kvlab {

inline std::unique_ptr<BlockCache> make_block_cache(const std::string& name, const std::string& parameters = "{}") {
  Params p = Params::from_text(parameters, "block cache '" + name + "'");
  return BlockCacheRegistry::make(name, p, "block cache");
}

// The least that a host does: content in blocks, references, and a check that every victim is a candidate.
class BlockCacheHost {
 public:
  BlockCacheHost(const std::string& cache, std::uint32_t num_blocks, const std::string& parameters = "{}")
      : cache_(make_block_cache(cache, parameters)), blocks_(num_blocks) {
    cache_->reset(num_blocks);
  }

  BlockCache& cache() { return *cache_; }
  [[nodiscard]] std::uint32_t num_referenced() const {
    std::uint32_t n = 0;
    for (const Block& b : blocks_) n += b.references > 0;
    return n;
  }
  [[nodiscard]] bool holds(char key) const { return places_.contains(key); }

  // Adds a reference to `key`. '.': it was there; '-': it went into a blank block; else the key that was evicted for it.
  char pin(char key, std::uint32_t depth = 0, double cost_s = 0) {
    if (const auto found = places_.find(key); found != places_.end()) {
      cache_->on_hit(BlockId{found->second});
      if (blocks_[found->second].references++ == 0) cache_->on_acquire(BlockId{found->second});
      return '.';
    }
    const std::uint32_t block = take(key);
    const char old = blocks_[block].key;
    if (old != '-') places_.erase(old);
    blocks_[block] = {key, 1};
    places_[key] = block;
    cache_->on_insert(BlockId{block}, static_cast<std::uint64_t>(key), depth, cost_s);
    return old;
  }
  void unpin(char key) {
    const std::uint32_t block = places_.at(key);
    if (--blocks_[block].references == 0) cache_->on_release(BlockId{block});
  }
  // One request of one block for each letter; what pin() said of each.
  std::string run(const std::string& keys) {
    std::string outcomes;
    for (const char key : keys) {
      outcomes += pin(key);
      unpin(key);
    }
    return outcomes;
  }

 private:
  struct Block {
    char key = '-';
    std::uint32_t references = 0;
  };

  std::uint32_t take(char key) {
    if (!cache_->orders_blank_blocks() && num_used_ < blocks_.size()) return num_used_++;
    const std::uint32_t block = index(cache_->victim(static_cast<std::uint64_t>(key)));
    EXPECT_LT(block, blocks_.size());
    EXPECT_EQ(blocks_[block].references, 0U) << "a referenced block was evicted";
    return block;
  }

  std::unique_ptr<BlockCache> cache_;
  std::vector<Block> blocks_;
  std::map<char, std::uint32_t> places_;
  std::uint32_t num_used_ = 0;
};

}  // namespace kvlab
