#pragma once

#include <compare>
#include <cstdint>
#include <deque>

#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {

// Victims with the fewest uses, the oldest insertion first among equals. Blocks used once wait in a queue; a search for victims moves those
// with more uses to a heap, and takes out referenced ones, which enter the heap when released. Else O(1).
class FewestUses {
 public:
  void reset() {
    blocks_.reset();
    queue_.clear();
    heap_.reset();
    num_inserted_ = 0;
  }
  // The block is referenced.
  void insert(std::uint32_t block) {
    blocks_.inserted(block) = {{1, num_inserted_++}, Place::kQueue, true};
    queue_.push_back(block);
  }
  void use(std::uint32_t block) { ++blocks_[block].rank.uses; }
  void acquire(std::uint32_t block) { blocks_[block].is_referenced = true; }
  void release(std::uint32_t block) {
    blocks_[block].is_referenced = false;
    if (blocks_[block].place == Place::kNone) push(block);
  }
  // Removes it; a candidate exists.
  std::uint32_t pop() {
    settle_queue();
    settle_heap();
    const bool is_queued = !queue_.empty() && (heap_.is_empty() || blocks_[queue_.front()].rank < blocks_[heap_.top()].rank);
    if (!is_queued) return heap_.pop();
    const std::uint32_t oldest = queue_.front();
    queue_.pop_front();
    return oldest;
  }

 private:
  struct Rank {
    std::uint32_t uses = 0;
    std::uint64_t inserted = 0;  // count of insertions
    auto operator<=>(const Rank&) const = default;
  };
  enum class Place : std::uint8_t { kNone, kQueue, kHeap };
  struct Block {
    Rank rank;
    Place place = Place::kNone;
    bool is_referenced = false;
  };

  void push(std::uint32_t block) {
    heap_.push(block, blocks_[block].rank);
    blocks_[block].place = Place::kHeap;
  }
  // Afterwards the front, if any, is a candidate with one use.
  void settle_queue() {
    for (; !queue_.empty(); queue_.pop_front()) {
      Block& block = blocks_[queue_.front()];
      if (!block.is_referenced && block.rank.uses == 1) return;
      block.place = Place::kNone;
      if (!block.is_referenced) push(queue_.front());
    }
  }
  // Afterwards the top, if any, is a candidate. Ranks in the heap may be too low, as uses are counted outside.
  void settle_heap() {
    while (!heap_.is_empty()) {
      const std::uint32_t top = heap_.top();
      if (blocks_[top].is_referenced) {
        heap_.pop();
        blocks_[top].place = Place::kNone;
      } else if (heap_.top_key() < blocks_[top].rank) {
        heap_.change(top, blocks_[top].rank);
      } else {
        return;
      }
    }
  }

  PerBlock<Block> blocks_;
  std::deque<std::uint32_t> queue_;  // by insertion
  CandidateHeap<Rank> heap_;
  std::uint64_t num_inserted_ = 0;
};

}  // namespace kvlab
