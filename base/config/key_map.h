#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/huge_pages.h"

namespace kvlab {

// 64-bit keys to small values: open addressing, linear probing, no tombstones. Only reset(), reserve() and grow_towards() allocate. Value{}
// marks an empty slot and is never stored. In a large map, keys that differ only in the last five bits share a group of 32 slots; probing
// goes from group to group.
template <class Value, std::size_t slots_per_key = 2>
class KeyMap {
  static_assert(slots_per_key >= 2, "a search ends at an empty slot");

 public:
  struct Slot {
    std::uint64_t key = 0;
    Value value{};
  };

  // Empties the map, with room for max_keys keys.
  void reset(std::size_t max_keys) {
    slots_.clear();
    size_ = 0;
    reserve(max_keys);
  }
  // Room for max_keys >= size() keys. Slots move.
  void reserve(std::size_t max_keys) {
    assert(max_keys >= size_);
    Slots old(std::bit_ceil(std::max<std::size_t>(slots_per_key * max_keys, 2)));
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    group_bits_ = slots_.size() >= kGroupedSize ? 5 : 0;
    group_ = std::size_t{1} << group_bits_;
    shift_ = 64 - std::countr_zero(slots_.size());
    most_probes_ = slots_.size() >> group_bits_;
    max_keys_ = max_keys;
    size_ = 0;
    for (const Slot& slot : old) {
      if (!is_empty(slot)) add(slot.key).value = slot.value;
    }
  }
  // Room for one more key, at most `most`. Grows by a factor.
  void grow_towards(std::size_t most) {
    if (size_ == max_keys_ && size_ < most) reserve(std::min(most, 4 * max_keys_));
  }
  [[nodiscard]] std::size_t max_keys() const { return max_keys_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  void prefetch(std::uint64_t key) const { __builtin_prefetch(&slots_[home(key)]); }

  // nullptr if absent. Valid until the next add() or erase().
  [[nodiscard]] const Slot* find(std::uint64_t key) const {
    for (std::size_t i = home(key);; i = after(i)) {
      if (is_empty(slots_[i])) return nullptr;
      if (slots_[i].key == key) return &slots_[i];
    }
  }
  [[nodiscard]] Slot* find(std::uint64_t key) { return const_cast<Slot*>(static_cast<const KeyMap*>(this)->find(key)); }

  // A new slot holds Value{}: store another value before the next call.
  Slot& add(std::uint64_t key) {
    std::size_t i = home(key);
    std::size_t probes = 0;
    for (; !is_empty(slots_[i]); i = after(i)) {
      if (slots_[i].key == key) return slots_[i];
      ++probes;
    }
    assert(size_ < max_keys_);
    // Only keys made to collide can fill one place in all groups.
    if (probes + 1 >= most_probes_ && after(i) == home(key)) throw std::length_error("too many keys collide");
    ++size_;
    slots_[i].key = key;
    return slots_[i];
  }

  void erase(Slot& slot) {
    auto hole = static_cast<std::size_t>(&slot - slots_.data());
    for (std::size_t i = after(hole); !is_empty(slots_[i]); i = after(i)) {
      // The slot at i may fill the hole unless its home comes after it.
      if (((i - home(slots_[i].key)) & mask_) < ((i - hole) & mask_)) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = Slot{};
    --size_;
  }

 private:
  using Slots = std::vector<Slot, HugePageAllocator<Slot>>;

  static bool is_empty(const Slot& slot) { return slot.value == Value{}; }
  // Group by Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4); place by the key's last bits, mixed.
  [[nodiscard]] std::size_t home(std::uint64_t key) const {
    const std::uint64_t product = (key >> group_bits_) * 0x9e3779b97f4a7c15ULL;
    const std::uint64_t group = product >> shift_, place = key ^ (product >> 7);
    return static_cast<std::size_t>(group ^ ((group ^ place) & (group_ - 1)));  // the place replaces the last bits
  }
  [[nodiscard]] std::size_t after(std::size_t i) const { return (i + group_) & mask_; }

  static constexpr std::size_t kGroupedSize = std::size_t{1} << 15;  // smaller maps could fill one place by chance

  Slots slots_ = Slots(2);
  std::size_t mask_ = 1;
  int group_bits_ = 0;
  std::size_t group_ = 1;  // slots
  int shift_ = 63;
  std::size_t most_probes_ = 2;
  std::size_t max_keys_ = 0;
  std::size_t size_ = 0;
};

}  // namespace kvlab
