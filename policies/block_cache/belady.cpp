#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/config/key_map.h"
#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {
namespace {

// Blocks by depth. Each in at most one place; O(1) but for empty depths in between.
class DepthLists {
 public:
  void reset() {
    links_.reset();
    first_.clear();
    num_blocks_ = 0;
  }
  [[nodiscard]] bool is_empty() const { return num_blocks_ == 0; }
  void push(std::uint32_t block, std::uint32_t depth) {
    if (depth >= first_.size()) first_.resize(std::size_t{depth} + 1, kNone);
    const std::uint32_t next = std::exchange(first_[depth], block);
    links_.inserted(block) = {kNone, next};
    if (next != kNone) links_[next].prev = block;
    ++num_blocks_;
  }
  void remove(std::uint32_t block, std::uint32_t depth) {
    const auto [prev, next] = links_[block];
    (prev == kNone ? first_[depth] : links_[prev].next) = next;
    if (next != kNone) links_[next].prev = prev;
    --num_blocks_;
  }
  // Removes the deepest, the latest among equals; not empty.
  std::uint32_t pop() {
    while (first_.back() == kNone) first_.pop_back();
    const std::uint32_t block = first_.back();
    remove(block, static_cast<std::uint32_t>(first_.size() - 1));
    return block;
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Links {
    std::uint32_t prev = kNone, next = kNone;
  };

  PerBlock<Links> links_;
  std::vector<std::uint32_t> first_;  // by depth
  std::uint32_t num_blocks_ = 0;
};

// Belady's MIN; ties: deepest. Optimal for the announced order of uses; with time that order depends on the cache. on_hit and on_insert
// take the key's earliest remaining use. Only one of several blocks with equal keys is used again.
class Belady final : public BlockCache {
 public:
  explicit Belady(Params&) {}

  void reset(std::uint32_t) override {
    blocks_.reset();
    used_again_.reset();
    never_again_.reset();
    set_future({});
  }
  [[nodiscard]] bool needs_future() const override { return true; }
  void set_future(std::span<const std::uint64_t> keys) override;

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double) override {
    blocks_.inserted(index(block)) = {key, kNeverAgain, depth, false};
    if (Uses* uses = use(key)) {
      if (uses->found == kNoBlock) uses->found = block;
      set_next(*uses);
    }
  }
  void on_hit(BlockId block) override {
    if (Uses* uses = use(blocks_[index(block)].key)) {
      uses->found = block;
      set_next(*uses);
    }
  }
  void on_acquire(BlockId block) override { leave(index(block)); }
  void on_release(BlockId block) override { enter(index(block)); }
  BlockId victim(std::uint64_t) override {
    const std::uint32_t farthest = never_again_.is_empty() ? used_again_.pop() : never_again_.pop();
    Uses* uses = find(blocks_[farthest].key);
    if (uses && uses->found == BlockId{farthest}) uses->found = kNoBlock;
    return BlockId{farthest};
  }

 private:
  using Position = std::uint32_t;
  static constexpr Position kNeverAgain = std::numeric_limits<Position>::max();
  static constexpr Position kUnknown = kNeverAgain - 1;

  struct Block {
    std::uint64_t key = 0;
    Position next = kNeverAgain;
    std::uint32_t depth = 0;
    bool is_candidate = false;
  };
  struct Uses {
    Position next = kUnknown;
    BlockId found = kNoBlock;  // by lookups of the key
    bool operator==(const Uses&) const = default;
  };

  Uses& added(std::uint64_t key);
  Uses* find(std::uint64_t key);
  Uses* use(std::uint64_t key);
  void set_next(const Uses& uses);
  void enter(std::uint32_t block);
  void leave(std::uint32_t block);

  PerBlock<Block> blocks_;
  std::vector<Position> later_;         // [length of the future]
  std::vector<Uses> by_number_;         // first remaining use of each key, if keys are small numbers
  KeyMap<Uses> by_key_;                 // else
  CandidateHeap<Position> used_again_;  // by complement of the next use
  DepthLists never_again_;
};

void Belady::set_future(std::span<const std::uint64_t> keys) {
  if (keys.size() >= kUnknown) throw InputError("block cache 'belady' can look ahead at most 4,294,967,293 block lookups");
  later_.assign(keys.size(), kNeverAgain);
  by_key_.reset(1024);
  const std::uint64_t largest = keys.empty() ? 0 : *std::max_element(keys.begin(), keys.end());
  by_number_.assign(largest / 2 <= keys.size() ? largest + 1 : 0, Uses{});
  for (auto i = static_cast<Position>(keys.size()); i-- > 0;) {
    Uses& uses = added(keys[i]);
    if (uses.next != kUnknown) later_[i] = uses.next;
    uses.next = i;
  }
}

Belady::Uses& Belady::added(std::uint64_t key) {
  if (!by_number_.empty()) return by_number_[key];
  if (by_key_.size() == by_key_.max_keys()) by_key_.reserve(2 * by_key_.max_keys());
  return by_key_.add(key).value;
}

// nullptr: not in the future.
Belady::Uses* Belady::find(std::uint64_t key) {
  if (!by_number_.empty()) return key < by_number_.size() && by_number_[key].next != kUnknown ? &by_number_[key] : nullptr;
  auto* slot = by_key_.find(key);
  return slot ? &slot->value : nullptr;
}

Belady::Uses* Belady::use(std::uint64_t key) {
  Uses* uses = find(key);
  if (uses && uses->next != kNeverAgain) uses->next = later_[uses->next];
  return uses;
}

void Belady::set_next(const Uses& uses) {
  const std::uint32_t found = index(uses.found);
  const bool is_candidate = blocks_[found].is_candidate;
  if (is_candidate) leave(found);
  blocks_[found].next = uses.next;
  if (is_candidate) enter(found);
}

void Belady::enter(std::uint32_t block) {
  Block& b = blocks_[block];
  b.is_candidate = true;
  if (b.next == kNeverAgain)
    never_again_.push(block, b.depth);
  else
    used_again_.push(block, ~b.next);
}

void Belady::leave(std::uint32_t block) {
  Block& b = blocks_[block];
  b.is_candidate = false;
  if (b.next == kNeverAgain)
    never_again_.remove(block, b.depth);
  else
    used_again_.remove(block);
}

KVLAB_REGISTER(BlockCache, Belady, "belady", "oracle: farthest next use, deeper first; the best for a given order of lookups",
               "Belady 1966");

}  // namespace
}  // namespace kvlab
