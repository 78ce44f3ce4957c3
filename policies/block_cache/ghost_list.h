#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/config/key_map.h"
#include "policies/block_cache/block_lists.h"

namespace kvlab {

// At most max_keys keys of evicted blocks, oldest dropped first. O(1); memory grows with the most keys held.
class GhostList {
 public:
  void reset(std::uint32_t max_keys) {
    max_keys_ = max_keys;
    places_.reset(kFirstKeys);
    keys_.clear();
    order_.reset(kNumLists, max_keys);
  }

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(places_.size()); }
  [[nodiscard]] bool contains(std::uint64_t key) const { return places_.find(key) != nullptr; }

  void add(std::uint64_t key) {
    if (max_keys_ == 0) return;
    places_.grow_towards(std::size_t{max_keys_} + 1);
    std::uint32_t& place = places_.add(key).value.index;
    const bool is_new = place == Place{}.index, is_full = size() > max_keys_;
    if (is_new) place = is_full ? order_.front(kUsed) : take_place();
    // A second copy of the same content was evicted, or the oldest key makes room: its place becomes the latest.
    if (!is_new || is_full) order_.remove(place);
    order_.push_back(kUsed, place);
    if (!is_new) return;
    const std::uint64_t oldest = std::exchange(keys_[place], key);
    if (is_full) places_.erase(*places_.find(oldest));  // `place` is in the map and may move
  }

  // False if absent.
  bool erase(std::uint64_t key) {
    auto* slot = places_.find(key);
    if (!slot) return false;
    order_.remove(slot->value.index);
    order_.push_back(kFree, slot->value.index);
    places_.erase(*slot);
    return true;
  }

  void drop_oldest() { erase(keys_[order_.front(kUsed)]); }  // not empty

 private:
  struct Place {
    std::uint32_t index = 0xffffffffU;
    bool operator==(const Place&) const = default;
  };
  static constexpr std::uint32_t kUsed = 0, kFree = 1, kNumLists = 2;
  static constexpr std::size_t kFirstKeys = 16;

  std::uint32_t take_place() {
    if (order_.is_empty(kFree)) {
      keys_.push_back(0);
      return static_cast<std::uint32_t>(keys_.size() - 1);
    }
    const std::uint32_t place = order_.front(kFree);
    order_.remove(place);
    return place;
  }

  std::uint32_t max_keys_ = 0;
  KeyMap<Place> places_;
  std::vector<std::uint64_t> keys_;
  BlockLists order_;
};

}  // namespace kvlab
