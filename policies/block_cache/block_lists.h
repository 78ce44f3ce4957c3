#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/zeroed_array.h"

namespace kvlab {

// Doubly linked lists over items 0 .. num_items - 1, each in at most one; O(1). Memory follows the items used.
class BlockLists {
 public:
  void reset(std::uint32_t num_lists, std::uint32_t num_items) {
    num_lists_ = num_lists;
    links_ = ZeroedArray<Links>(std::size_t{num_lists} + num_items);
    for (std::uint32_t i = 0; i < num_lists; ++i) links_[i] = {i, i};
  }

  [[nodiscard]] bool is_empty(std::uint32_t list) const { return links_[list].next == list; }
  [[nodiscard]] std::uint32_t front(std::uint32_t list) const { return links_[list].next - num_lists_; }  // not empty

  void push_back(std::uint32_t list, std::uint32_t item) { link_before(list, item + num_lists_); }
  // In this order.
  void push_back(std::uint32_t list, std::span<const BlockId> items) {
    std::uint32_t last = links_[list].prev;
    for (const BlockId item : items) {
      const std::uint32_t node = index(item) + num_lists_;
      links_[last].next = node;
      links_[node].prev = last;
      last = node;
    }
    links_[last].next = list;
    links_[list].prev = last;
  }
  // Appends the first `count` items, which exist, to `items`.
  void pop_front(std::uint32_t list, std::size_t count, std::vector<BlockId>& items) {
    const std::size_t before = items.size();
    items.resize(before + count);
    std::uint32_t next = links_[list].next;
    for (std::size_t i = before; i < items.size(); ++i) {
      items[i] = BlockId{next - num_lists_};
      next = links_[next].next;
    }
    links_[list].next = next;
    links_[next].prev = list;
  }
  void push_front(std::uint32_t list, std::uint32_t item) { link_before(links_[list].next, item + num_lists_); }

  // item is in a list.
  void remove(std::uint32_t item) {
    const Links at = links_[item + num_lists_];
    links_[at.prev].next = at.next;
    links_[at.next].prev = at.prev;
  }

 private:
  struct Links {
    std::uint32_t prev, next;
  };

  // Rings closed by sentinels, which come first.
  void link_before(std::uint32_t next, std::uint32_t node) {
    const std::uint32_t prev = links_[next].prev;
    links_[node] = {prev, next};
    links_[prev].next = node;
    links_[next].prev = node;
  }

  std::uint32_t num_lists_ = 0;
  ZeroedArray<Links> links_;
};

}  // namespace kvlab
