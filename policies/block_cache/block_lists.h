#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

// Several doubly linked lists over the items 0 .. num_items - 1, each item in at most one of them: two indices per item,
// every operation in constant time, nothing allocated after reset(). Front is the end that leaves first.
class BlockLists {
 public:
  void reset(std::uint32_t num_items, std::uint32_t num_lists) {
    num_items_ = num_items;
    links_.resize(std::size_t{num_items} + num_lists);
    for (std::uint32_t i = 0; i < links_.size(); ++i) links_[i] = {i, i};
  }

  [[nodiscard]] bool is_empty(std::uint32_t list) const { return links_[end(list)].next == end(list); }
  [[nodiscard]] std::uint32_t front(std::uint32_t list) const { return links_[end(list)].next; }  // list is not empty

  void push_back(std::uint32_t list, std::uint32_t item) { link_before(end(list), item); }
  void push_front(std::uint32_t list, std::uint32_t item) { link_before(front(list), item); }

  // item is in a list.
  void remove(std::uint32_t item) {
    const Links at = links_[item];
    links_[at.prev].next = at.next;
    links_[at.next].prev = at.prev;
  }

 private:
  struct Links {
    std::uint32_t prev, next;
  };

  // Each list is a ring closed by an element of its own, so that no operation has a special case at the ends.
  [[nodiscard]] std::uint32_t end(std::uint32_t list) const { return num_items_ + list; }

  void link_before(std::uint32_t next, std::uint32_t item) {
    const std::uint32_t prev = links_[next].prev;
    links_[item] = {prev, next};
    links_[prev].next = item;
    links_[next].prev = item;
  }

  std::uint32_t num_items_ = 0;
  std::vector<Links> links_;
};

}  // namespace kvlab
