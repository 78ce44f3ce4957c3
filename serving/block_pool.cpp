#include "serving/block_pool.h"

#include <algorithm>
#include <string>

#include "base/ceil_div.h"

namespace kvlab {

BlockPool::BlockPool(std::uint32_t num_blocks, std::int32_t pages_per_block, std::unique_ptr<BlockCache> cache)
    : cache_(std::move(cache)),
      states_(num_blocks),
      orders_blank_(cache_->orders_blank_blocks()),
      prefers_runs_(cache_->prefers_runs()),
      ignores_insertions_(cache_->ignores_insertions()),
      pages_per_block_(pages_per_block),
      num_blocks_(num_blocks),
      num_begun_(orders_blank_ ? num_blocks : 0),
      num_free_(num_blocks) {
  cache_->reset(num_blocks);
  index_.reset(num_blocks);
}

// Without split blocks; the block has no key and no references.
BlockId BlockPool::take_free() {
  BlockId block;
  if (!blank_.empty()) {
    block = blank_.back();
    blank_.pop_back();
  } else if (num_begun_ < num_blocks_) {
    block = BlockId{static_cast<std::uint32_t>(num_begun_++)};
  } else {
    block = cache_->victim(0);
    forget(states_[index(block)], block);
  }
  --num_free_;
  ++operations_;
  return block;
}

// Loose pages become an unhashed block.
BlockId BlockPool::join_loose_pages() {
  const BlockId block = split_.back();
  split_.pop_back();
  states_[index(block)].place = kNoKey;
  loose_pages_ -= pages_per_block_;
  ++operations_;
  return block;
}

BlockId BlockPool::take() {
  const BlockId block = loose_pages_ >= pages_per_block_ ? join_loose_pages() : take_free();
  State& state = states_[index(block)];
  state.count = 1;
  ++state.takes;
  return block;
}

void BlockPool::take(std::int64_t count, std::vector<BlockId>& blocks) {
  constexpr std::size_t kStatesAhead = 16, kKeysAhead = 8;  // distance of prefetches
  for (; count > 0 && (loose_pages_ >= pages_per_block_ || !blank_.empty() || num_begun_ < num_blocks_); --count) blocks.push_back(take());
  if (count == 0) return;
  victims_.clear();
  if (prefers_runs_)
    cache_->victims_after(blocks.empty() ? kNoBlock : blocks.back(), static_cast<std::size_t>(count), victims_);
  else
    cache_->victims(static_cast<std::size_t>(count), victims_);
  const bool have_keys = num_cached_ > 0;
  const std::span<const BlockId> taken = victims_;
  State* const states = &states_[0];
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (i + kStatesAhead < taken.size()) __builtin_prefetch(&states[index(taken[i + kStatesAhead])]);
    if (have_keys && i + kKeysAhead < taken.size()) {
      const State& next = states[index(taken[i + kKeysAhead])];
      if (next.has_key()) index_.prefetch_erase(next.place - kFirstPlace);
    }
    State& state = states[index(taken[i])];
    if (have_keys) forget(state, taken[i]);
    state.count = 1;
    ++state.takes;
  }
  num_free_ -= count;
  operations_ += static_cast<std::uint64_t>(count);
  blocks.insert(blocks.end(), victims_.begin(), victims_.end());
}

void BlockPool::publish(std::span<const BlockId> blocks, std::uint64_t key, std::uint32_t depth, double cost_s) {
  std::uint32_t place = index_.insert(key, blocks) + kFirstPlace;
  for (const BlockId block : blocks) {
    State& state = states_[index(block)];
    if (state.has_key() || state.count == 0)
      throw InternalError("publishing block " + std::to_string(index(block)) + " which is free or has a key");
    state.place = place++;
  }
  operations_ += blocks.size();
  for (std::uint32_t i = 0; !ignores_insertions_ && i < blocks.size(); ++i) cache_->on_insert(blocks[i], key + i, depth + i, cost_s);
}

void BlockPool::release(BlockId block) {
  State& state = states_[index(block)];
  ++operations_;
  if (--state.count > 0) return;
  ++num_free_;
  num_cached_ += state.has_key() ? 1 : 0;
  if (state.has_key() || orders_blank_) {
    cache_->on_release(block);
  } else {
    blank_.push_back(block);
  }
}

void BlockPool::release_reversed(const std::vector<BlockId>& blocks) {
  constexpr std::size_t kAhead = 16;
  released_.resize(blocks.size());
  const bool orders_blank = orders_blank_;
  State* const states = &states_[0];
  BlockId* const to = released_.data();
  std::size_t released = 0;
  std::int64_t cached = 0, blank = 0;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (i >= kAhead) __builtin_prefetch(&states[index(blocks[i - kAhead])]);
    State& state = states[index(blocks[i])];
    if (--state.count > 0) continue;
    const bool has_key = state.has_key();
    cached += has_key ? 1 : 0;
    if (has_key || orders_blank) {
      to[released++] = blocks[i];
    } else {
      blank_.push_back(blocks[i]);
      ++blank;
    }
  }
  operations_ += blocks.size();
  num_cached_ += cached;
  num_free_ += static_cast<std::int64_t>(released) + blank;
  cache_->on_releases(std::span(released_).first(released));
}

std::int64_t BlockPool::free_after_pages(std::int64_t pages) const {
  const std::int64_t missing = pages - loose_pages_;
  const std::int64_t split = missing > 0 ? ceil_div(missing, pages_per_block_) : 0;
  return num_free_ - split + (loose_pages_ + split * pages_per_block_ - pages) / pages_per_block_;
}

void BlockPool::split_one() {
  const BlockId block = take_free();
  states_[index(block)].place = kSplit;
  ++states_[index(block)].takes;
  split_.push_back(block);
  if (split_log != nullptr) split_log->push_back(block);
  loose_pages_ += pages_per_block_;
}

void BlockPool::take_pages(std::int64_t pages) {
  while (loose_pages_ < pages) {
    if (num_free_ == 0) throw InternalError("taking pages from an empty pool");
    split_one();
  }
  loose_pages_ -= pages;
  private_pages_ += pages;
}

void BlockPool::return_pages(std::int64_t pages) {
  loose_pages_ += pages;
  private_pages_ -= pages;
  if (private_pages_ < 0) throw InternalError("more pages returned than taken");
}

std::int64_t BlockPool::check() const {
  std::int64_t free = 0, cached = 0, split = 0, references = 0;
  for (const State& state : states_) {
    references += state.count;
    if (state.place == kSplit)
      ++split;
    else if (state.count == 0)
      ++free;
    if (state.count == 0 && state.has_key()) ++cached;
    if (state.place == kSplit && state.count != 0) throw InternalError("a split block is referenced");
  }
  if (free != num_free_ || cached != num_cached_) throw InternalError("free or cached blocks are miscounted");
  if (static_cast<std::int64_t>(split_.size()) != split) throw InternalError("split blocks are miscounted");
  if (split * pages_per_block_ != loose_pages_ + private_pages_) throw InternalError("pages are not conserved");
  return references;
}

}  // namespace kvlab
