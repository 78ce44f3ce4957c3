#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/ids.h"
#include "policies/kv/cache/kv_pages.h"

namespace kvlab {

// `takes` counts takings and identifies the content.
struct TakenBlock {
  BlockId id{};
  std::uint32_t takes = 0;
};

// A pool's blocks as pages, kept until the block is taken again or dropped. Rows that read them are further users.
class BlockPages {
 public:
  BlockPages(KvPages& pages, std::int64_t num_blocks, std::int32_t pages_per_block);
  ~BlockPages();
  BlockPages(const BlockPages&) = delete;
  BlockPages& operator=(const BlockPages&) = delete;

  // Fresh if the block was taken since.
  const std::vector<std::int32_t>& pages_of(TakenBlock block);
  // Tokens computed, or to be by the next step.
  [[nodiscard]] std::int32_t filled(TakenBlock block) const;
  void fill(TakenBlock block, std::int32_t tokens);
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
