#include "engine/serve/block_pages.h"

#include <algorithm>

namespace kvlab {

BlockPages::BlockPages(KvPages& pages, std::int64_t num_blocks, std::int32_t pages_per_block)
    : pages_(pages), pages_per_block_(pages_per_block), blocks_(static_cast<std::size_t>(num_blocks)) {}

BlockPages::~BlockPages() {
  for (Entry& entry : blocks_) give_back(entry);
}

void BlockPages::give_back(Entry& entry) {
  if (entry.pages.empty()) return;
  for (const std::int32_t page : entry.pages) pages_.give_back(page);
  entry.pages.clear();
  entry.filled = 0;
  --mapped_;
}

const std::vector<std::int32_t>& BlockPages::pages_of(TakenBlock block) {
  Entry& entry = blocks_[index(block.id)];
  if (entry.takes != block.takes) give_back(entry);
  if (entry.pages.empty()) {
    for (std::int32_t i = 0; i < pages_per_block_; ++i) entry.pages.push_back(pages_.take());
    entry.takes = block.takes;
    ++mapped_;
  }
  return entry.pages;
}

std::int32_t BlockPages::filled(TakenBlock block) const {
  const Entry& entry = blocks_[index(block.id)];
  return entry.takes == block.takes ? entry.filled : 0;
}

void BlockPages::fill(TakenBlock block, std::int32_t tokens) {
  Entry& entry = blocks_[index(block.id)];
  if (entry.takes == block.takes) entry.filled = std::max(entry.filled, tokens);
}

void BlockPages::drop(BlockId block) { give_back(blocks_[index(block)]); }

void BlockPages::add_pages(std::set<std::int32_t>& pages) const {
  for (const Entry& entry : blocks_) pages.insert(entry.pages.begin(), entry.pages.end());
}

}  // namespace kvlab
