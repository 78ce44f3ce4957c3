#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <vector>

#include "base/config/key_map.h"
#include "base/ids.h"

namespace kvlab {

// Blocks by content `key`. As vLLM v1 does not deduplicate, blocks may have equal content; a lookup returns the oldest entry. Constant
// time; memory follows the entries.
class BlockIndex {
 public:
  // Blocks are 0 .. num_blocks - 1.
  void reset(std::uint32_t num_blocks) {
    num_blocks_ = num_blocks;
    map_.reset(std::min<std::uint32_t>(num_blocks, 16));
    links_.clear();
    num_entries_ = 0;
  }

  [[nodiscard]] std::uint32_t num_entries() const { return num_entries_; }  // (key, block) pairs
  void prefetch(std::uint64_t key) const { map_.prefetch(key); }
  void prefetch_erase(std::uint64_t key) const { map_.prefetch_erase(key); }

  // kNoBlock: absent.
  [[nodiscard]] BlockId find(std::uint64_t key) const {
    const auto* slot = map_.find(key);
    return slot ? slot->value.first : kNoBlock;
  }

  // `block` must not be in the index; `key` may be.
  void insert(std::uint64_t key, BlockId block) {
    assert(index(block) < num_blocks_);
    map_.grow_towards(num_blocks_);
    Blocks& blocks = map_.add(key).value;
    if (blocks.first == kNoBlock) {
      blocks = {block, block};
    } else {
      make_links(std::max(index(block), index(blocks.last)));
      link(blocks.last).next = block;
      link(block) = {blocks.last, kNoBlock};
      blocks.last = block;
    }
    ++num_entries_;
  }

  // `block` must be in the index under `key`.
  void erase(std::uint64_t key, BlockId block) {
    auto* slot = map_.find(key);
    assert(slot);
    Blocks& blocks = slot->value;
    if (blocks.first == blocks.last) {
      assert(blocks.first == block);
      map_.erase(*slot);
    } else {
      unlink(blocks, block);
    }
    --num_entries_;
  }

 private:
  struct Blocks {  // in order of insertion; a single block has no links
    BlockId first = kNoBlock;
    BlockId last = kNoBlock;
    bool operator==(const Blocks& other) const { return first == other.first; }  // a block has one key
  };
  struct Links {
    BlockId prev = kNoBlock;
    BlockId next = kNoBlock;
  };

  void make_links(std::size_t last) {
    if (last >= links_.size()) links_.resize(std::max(last + 1, 2 * links_.size()));
  }
  Links& link(BlockId block) { return links_[index(block)]; }

  void unlink(Blocks& blocks, BlockId block) {
    const Links at = link(block);
    (block == blocks.first ? blocks.first : link(at.prev).next) = at.next;
    (block == blocks.last ? blocks.last : link(at.next).prev) = at.prev;
    link(block) = Links{};
  }

  // 8 slots per block (128 bytes) are 25 % faster than 4 (hit-ratio benchmark).
  KeyMap<Blocks, 4> map_;
  std::vector<Links> links_;  // up to the highest block of equal content
  std::uint32_t num_blocks_ = 0;
  std::uint32_t num_entries_ = 0;
};

}  // namespace kvlab
