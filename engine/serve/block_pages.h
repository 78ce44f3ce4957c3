#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/ids.h"
#include "policies/kv/kv_pages.h"

namespace kvlab {

// A block as a pool hands it out: its number, and how often it had been taken then, which tells one content from the next.
struct TakenBlock {
  BlockId id{};
  std::uint32_t takes = 0;
};

// The physical pages of a pool's blocks: pages_per_block each, of block_tokens tokens. A block keeps its pages, and with them its content,
// until it is taken again or dropped; rows that read them are further users of the pages.
class BlockPages {
 public:
  BlockPages(KvPages& pages, std::int64_t num_blocks, std::int32_t pages_per_block);
  ~BlockPages();
  BlockPages(const BlockPages&) = delete;
  BlockPages& operator=(const BlockPages&) = delete;

  // Pages of the block; fresh ones where it was taken since.
  const std::vector<std::int32_t>& pages_of(TakenBlock block);
  // Tokens of it that were computed, or will be by the step being put together.
  [[nodiscard]] std::int32_t filled(TakenBlock block) const;
  void fill(TakenBlock block, std::int32_t tokens);
  // The content is lost: the block was split.
  void drop(BlockId block);

  [[nodiscard]] std::int64_t mapped_blocks() const { return mapped_; }
  void add_pages(std::set<std::int32_t>& pages) const;

 private:
  struct Entry {
    std::uint32_t takes = 0;
    std::int32_t filled = 0;
    std::vector<std::int32_t> pages;
  };
  void give_back(Entry& entry);
  KvPages& pages_;
  std::int32_t pages_per_block_;
  std::int64_t mapped_ = 0;
  std::vector<Entry> blocks_;
};

}  // namespace kvlab
