#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/config/key_map.h"
#include "base/ids.h"
#include "traces/block_hashes.h"

namespace kvlab {

// Blocks by content `key`. As vLLM v1 does not deduplicate, blocks may have equal content; a lookup returns the oldest entry. Keys that
// differ only in their last bits, such as the parts of a hashed chunk, share a group. Constant time on average.
class BlockIndex {
 public:
  using Place = std::uint32_t;  // of a key; below kEnd
  static constexpr Place kEnd = ~Place{0} << KeyRun::kBits;

  // Blocks are 0 .. num_blocks - 1.
  void reset(std::uint32_t num_blocks) {
    num_blocks_ = num_blocks;
    map_.reset(std::min<std::uint32_t>(num_blocks, 16));
    groups_.clear();
    unused_.clear();
    links_.clear();
    latest_key_ = kNone;
    num_entries_ = 0;
  }

  [[nodiscard]] std::uint32_t num_entries() const { return num_entries_; }  // (key, block) pairs
  void prefetch(std::uint64_t key) const { map_.prefetch(key >> kPartBits); }
  void prefetch_erase(Place place) const { __builtin_prefetch(&groups_[place >> kPartBits]); }

  // kNoBlock: absent.
  [[nodiscard]] BlockId find(std::uint64_t key) const {
    if (key >> kPartBits != latest_key_) {
      const auto* slot = map_.find(key >> kPartBits);
      if (slot == nullptr) return kNoBlock;
      latest_key_ = slot->key;
      latest_ = slot->value.number - 1;
    }
    return groups_[latest_].first[part_of(key)];
  }

  // `block` must not be in the index; `key` may be.
  Place insert(std::uint64_t key, BlockId block) { return insert(key, std::span(&block, 1)); }
  // Keys key, key + 1, ... of one group, for `blocks`. The places follow each other, too.
  Place insert(std::uint64_t key, std::span<const BlockId> blocks) {
    if (key >> kPartBits != latest_key_) latest_ = add_group(key >> kPartBits);
    Group& group = groups_[latest_];
    const std::size_t part = part_of(key);
    assert(part + blocks.size() <= group.first.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      BlockId& first = group.first[part + i];
      if (first == kNoBlock) {
        first = blocks[i];
        ++group.parts;
      } else {
        append(first, blocks[i], (group.shared & bit_of(part + i)) == 0);
        group.shared |= bit_of(part + i);
      }
    }
    num_entries_ += static_cast<std::uint32_t>(blocks.size());
    return latest_ << kPartBits | static_cast<Place>(part);
  }

  // `block` must be in the index at `place`.
  void erase(Place place, BlockId block) {
    Group& group = groups_[place >> kPartBits];
    BlockId& first = group.first[part_of(place)];
    if ((group.shared & bit_of(place)) == 0) {
      assert(first == block);
      first = kNoBlock;
      --group.parts;
    } else if (unlink(first, block)) {
      group.shared &= static_cast<std::uint8_t>(~bit_of(place));
    }
    --num_entries_;
  }

 private:
  static constexpr unsigned kPartBits = KeyRun::kBits;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // no group's key
  struct Group {
    std::uint64_t key = 0;                         // without the parts' bits
    std::array<BlockId, 1U << kPartBits> first{};  // by part, the oldest
    std::uint8_t parts = 0;                        // present; 0: unused
    std::uint8_t shared = 0;                       // a bit for each part with several blocks, which have links
  };
  struct GroupNumber {  // from 1
    std::uint32_t number = 0;
    bool operator==(const GroupNumber&) const = default;
  };
  // The first block's `prev` is the last one.
  struct Links {
    BlockId prev = kNoBlock;
    BlockId next = kNoBlock;
  };

  static std::size_t part_of(std::uint64_t key) { return key & ((1U << kPartBits) - 1); }
  static std::uint8_t bit_of(std::uint64_t key) { return static_cast<std::uint8_t>(1U << part_of(key)); }

  std::uint32_t add_group(std::uint64_t key) {
    latest_key_ = key;
    if (map_.size() == map_.max_keys()) make_room();
    GroupNumber& number = map_.add(key).value;
    if (number == GroupNumber{}) {
      if (unused_.empty()) {
        if (groups_.size() >= kEnd >> kPartBits) throw std::length_error("too many blocks have a key");
        unused_.push_back(static_cast<std::uint32_t>(groups_.size()));
        groups_.emplace_back().first.fill(kNoBlock);
      }
      number.number = unused_.back() + 1;
      unused_.pop_back();
      groups_[number.number - 1].key = key;
    }
    return number.number - 1;
  }
  // Groups without entries leave the map only here. At least half of it is free after.
  void make_room() {
    const auto live = static_cast<std::size_t>(std::ranges::count_if(groups_, [](const Group& group) { return group.parts > 0; }));
    const std::size_t most = 2 * std::size_t{num_blocks_};
    map_.reset(live > map_.max_keys() / 2 ? std::min(most, 4 * map_.max_keys()) : map_.max_keys());
    unused_.clear();
    for (std::uint32_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].parts == 0)
        unused_.push_back(i);
      else
        map_.add(groups_[i].key).value.number = i + 1;
    }
  }

  Links& link(BlockId block) { return links_[index(block)]; }
  void append(BlockId first, BlockId block, bool is_second) {
    const std::size_t room = std::size_t{std::max(index(first), index(block))} + 1;
    if (room > links_.size()) links_.resize(std::max(room, 2 * links_.size()));
    if (is_second) link(first) = {first, kNoBlock};
    const BlockId last = link(first).prev;
    link(last).next = block;
    link(block) = {last, kNoBlock};
    link(first).prev = block;
  }
  // True: one block is left.
  bool unlink(BlockId& first, BlockId block) {
    const Links at = link(block);
    if (block == first)
      first = at.next;
    else
      link(at.prev).next = at.next;
    link(at.next == kNoBlock ? first : at.next).prev = at.prev;
    return link(first).prev == first;
  }

  KeyMap<GroupNumber> map_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> unused_;
  std::vector<Links> links_;  // up to the highest block of equal content
  mutable std::uint64_t latest_key_ = kNone;
  mutable std::uint32_t latest_ = 0;
  std::uint32_t num_blocks_ = 0;
  std::uint32_t num_entries_ = 0;
};

}  // namespace kvlab
