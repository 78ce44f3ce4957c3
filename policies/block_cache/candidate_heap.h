#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvlab {

// Binary heap, smallest key first; any item can be removed: O(log n). Memory grows with the highest item.
template <class Key>
class CandidateHeap {
 public:
  void reset() {
    heap_.clear();
    place_.clear();
  }

  [[nodiscard]] bool contains(std::uint32_t item) const { return item < place_.size() && place_[item] != kAbsent; }
  [[nodiscard]] bool is_empty() const { return heap_.empty(); }
  [[nodiscard]] std::uint32_t top() const { return heap_.front().item; }  // not empty
  [[nodiscard]] const Key& top_key() const { return heap_.front().key; }  // not empty

  // item is not in the heap.
  void push(std::uint32_t item, const Key& key) {
    if (item >= place_.size()) place_.resize(std::max<std::size_t>(std::size_t{item} + 1, 2 * place_.size()), kAbsent);
    heap_.push_back({key, item});
    sift_up(static_cast<std::uint32_t>(heap_.size() - 1));
  }

  // item is in the heap.
  void remove(std::uint32_t item) {
    const std::uint32_t at = place_[item];
    place_[item] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    settle(at, last);
  }

  // Removes top(); not empty.
  std::uint32_t pop() {
    const std::uint32_t first = top();
    remove(first);
    return first;
  }

  // item is in the heap.
  void change(std::uint32_t item, const Key& key) { settle(place_[item], {key, item}); }

 private:
  struct Entry {
    Key key;
    std::uint32_t item;
  };
  static constexpr std::uint32_t kAbsent = 0xffffffffU;

  void put(std::uint32_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[entry.item] = at;
  }

  void sift_up(std::uint32_t at) {
    const Entry entry = heap_[at];
    while (at > 0 && entry.key < heap_[(at - 1) / 2].key) {
      put(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    put(at, entry);
  }

  // Fills the hole at `at`: the smaller children move up to a leaf's place, from where the entry rises.
  void settle(std::uint32_t at, const Entry& entry) {
    const auto size = static_cast<std::uint32_t>(heap_.size());
    for (std::uint32_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size) child += heap_[child + 1].key < heap_[child].key;
      put(at, heap_[child]);
      at = child;
    }
    heap_[at] = entry;
    sift_up(at);
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> place_;  // by item: its position in heap_
};

}  // namespace kvlab
