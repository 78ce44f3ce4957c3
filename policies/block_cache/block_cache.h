#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/registry.h"

namespace kvlab {

// Decides which unreferenced block of KV memory is evicted next. The pool (serving/) drives it, and so does the
// hit-ratio driver (sim/hit_ratio) with every block unreferenced and no time.
//
// A block is *resident* from on_insert to the moment victim() returns it, *referenced* while requests pin it, and a
// *candidate* while it is resident and unreferenced. Only candidates may be victims. Calls are made in the order in which
// the scheduler's operations happen, so a policy may count them as its clock.
class BlockCache {
 public:
  virtual ~BlockCache() = default;
  // Called once, first. Blocks are 0 .. num_blocks - 1, all blank (no key) and free.
  virtual void reset(std::uint32_t num_blocks) = 0;
  // True: blank free blocks queue in this policy's order too, as in the engine's own free list: on_release and victim()
  // then cover them, and reset() starts with all of them as candidates in index order. False: the pool hands out blank
  // blocks first and asks for a victim only when there is none.
  [[nodiscard]] virtual bool orders_blank_blocks() const { return false; }
  // `block` now holds `key`; it is referenced. depth: its position in its chain, 0 first. cost_s: what computing it again
  // would take, in seconds (0 where the host does not know).
  virtual void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double cost_s) = 0;
  // A lookup found it, referenced or not. Comes before on_acquire.
  virtual void on_hit(BlockId block) = 0;
  virtual void on_acquire(BlockId block) = 0;  // a candidate was taken back by a hit
  virtual void on_release(BlockId block) = 0;  // its last reference went; a candidate from here on
  // Picks, removes and returns a candidate. `incoming`: the key that needs the room, 0 if it has none.
  // At least one candidate exists.
  virtual BlockId victim(std::uint64_t incoming) = 0;
  // `count` victims one after the other, appended to `blocks`; as many candidates exist.
  virtual void victims(std::size_t count, std::vector<BlockId>& blocks) {
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(victim(0));
  }
  // True: victims_after() is called instead, with the block that the owner of the new ones holds last; kNoBlock: it holds none.
  [[nodiscard]] virtual bool prefers_runs() const { return false; }
  virtual void victims_after(BlockId /*last*/, std::size_t count, std::vector<BlockId>& blocks) { victims(count, blocks); }
  // True: on_insert's cost_s is looked at, so hosts that know it should say it.
  [[nodiscard]] virtual bool weighs_cost() const { return false; }
  // Oracles only: keys in the order in which they will be looked up or inserted.
  [[nodiscard]] virtual bool needs_future() const { return false; }
  virtual void set_future(std::span<const std::uint64_t> /*keys*/) {}
};

// Values that a cache keeps per block. Memory grows with the highest block that was inserted.
template <class T>
class PerBlock {
 public:
  void reset() { values_.clear(); }
  // For on_insert: the block may be new.
  T& inserted(std::uint32_t block) {
    if (block >= values_.size()) [[unlikely]]
      values_.resize(std::max<std::size_t>(std::size_t{block} + 1, 2 * values_.size()));
    return values_[block];
  }
  // The block was inserted before.
  T& operator[](std::uint32_t block) { return values_[block]; }

 private:
  std::vector<T> values_;
};

using BlockCacheRegistry = Registry<BlockCache>;

}  // namespace kvlab
