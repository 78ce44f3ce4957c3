#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/config/registry.h"
#include "base/ids.h"

namespace kvlab {

// A block is *resident* from on_insert until victim() returns it, *referenced* while requests pin it, and a *candidate* while resident and
// unreferenced. Calls come in the scheduler's order and can serve as a clock.
class BlockCache {
 public:
  virtual ~BlockCache() = default;
  // Called first. Blocks 0 .. num_blocks - 1 are blank (no key) and free.
  virtual void reset(std::uint32_t num_blocks) = 0;
  // True: on_release and victim() also cover blank blocks; reset() makes all blocks candidates in index order. False: the pool gives out
  // blank blocks first.
  [[nodiscard]] virtual bool orders_blank_blocks() const { return false; }
  // `block` holds `key` and is referenced. depth: position in its chain, from 0. cost_s: seconds to recompute it (0: unknown).
  virtual void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double cost_s) = 0;
  // True: on_insert() does nothing and need not be called.
  [[nodiscard]] virtual bool ignores_insertions() const { return false; }
  // Referenced or not. Called before on_acquire.
  virtual void on_hit(BlockId block) = 0;
  virtual void on_acquire(BlockId block) = 0;  // a hit took a candidate
  virtual void on_release(BlockId block) = 0;
  // on_release() of each, in this order.
  virtual void on_releases(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) on_release(block);
  }
  // Removes a candidate; at least one exists. `incoming`: the key that needs the room, or 0.
  virtual BlockId victim(std::uint64_t incoming) = 0;
  // That many candidates exist.
  virtual void victims(std::size_t count, std::vector<BlockId>& blocks) {
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(victim(0));
  }
  // True: victims_after() is called instead, with the last block of the new blocks' owner, or kNoBlock.
  [[nodiscard]] virtual bool prefers_runs() const { return false; }
  virtual void victims_after(BlockId /*last*/, std::size_t count, std::vector<BlockId>& blocks) { victims(count, blocks); }
  // True: uses cost_s.
  [[nodiscard]] virtual bool weighs_cost() const { return false; }
  // Keys in the order of lookups and insertions.
  [[nodiscard]] virtual bool needs_future() const { return false; }
  virtual void set_future(std::span<const std::uint64_t> /*keys*/) {}
};

// Memory grows with the highest block inserted.
template <class T>
class PerBlock {
 public:
  void reset() { values_.clear(); }
  // The block may be new.
  T& inserted(std::uint32_t block) {
    if (block >= values_.size()) [[unlikely]]
      values_.resize(std::max<std::size_t>(std::size_t{block} + 1, 2 * values_.size()));
    return values_[block];
  }
  T& operator[](std::uint32_t block) { return values_[block]; }

 private:
  std::vector<T> values_;
};

using BlockCacheRegistry = Registry<BlockCache>;

}  // namespace kvlab
