#include <compare>
#include <limits>
#include <vector>

#include "base/config/key_map.h"
#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {
namespace {

// Belady's MIN; ties: deepest. Optimal for the announced order of uses; with time that order depends on the cache. on_hit and on_insert
// take the key's earliest remaining use. Only one of several blocks with equal keys is used again.
class Belady final : public BlockCache {
 public:
  explicit Belady(Params&) {}

  void reset(std::uint32_t) override {
    blocks_.reset();
    candidates_.reset();
    set_future({});
  }
  [[nodiscard]] bool needs_future() const override { return true; }
  void set_future(std::span<const std::uint64_t> keys) override;

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double) override {
    blocks_.inserted(index(block)) = {key, {~kNeverAgain, ~depth}};
    if (Uses* uses = use(key)) {
      if (uses->found == kNoBlock) uses->found = block;
      rank_found(*uses);
    }
  }
  void on_hit(BlockId block) override {
    if (Uses* uses = use(blocks_[index(block)].key)) {
      uses->found = block;
      rank_found(*uses);
    }
  }
  void on_acquire(BlockId block) override { candidates_.remove(index(block)); }
  void on_release(BlockId block) override { candidates_.push(index(block), blocks_[index(block)].rank); }
  BlockId victim(std::uint64_t) override {
    const std::uint32_t farthest = candidates_.pop();
    auto* slot = uses_.find(blocks_[farthest].key);
    if (slot && slot->value.found == BlockId{farthest}) slot->value.found = kNoBlock;
    return BlockId{farthest};
  }

 private:
  using Position = std::uint32_t;
  static constexpr Position kNeverAgain = std::numeric_limits<Position>::max();
  static constexpr Position kUnknown = kNeverAgain - 1;

  struct Rank {  // complements: smallest is farthest and deepest
    Position sooner = 0;
    std::uint32_t shallower = 0;
    auto operator<=>(const Rank&) const = default;
  };
  struct Block {
    std::uint64_t key = 0;
    Rank rank;
  };
  struct Uses {
    Position next = kUnknown;
    BlockId found = kNoBlock;  // by lookups of the key
    bool operator==(const Uses&) const = default;
  };

  Uses* use(std::uint64_t key);
  void rank_found(const Uses& uses);

  PerBlock<Block> blocks_;
  std::vector<Position> later_;  // [length of the future]
  KeyMap<Uses> uses_;            // key -> its first remaining use
  CandidateHeap<Rank> candidates_;
};

void Belady::set_future(std::span<const std::uint64_t> keys) {
  if (keys.size() >= kUnknown) throw InputError("block cache 'belady' can look ahead at most 4,294,967,293 block lookups");
  later_.assign(keys.size(), kNeverAgain);
  uses_.reset(1024);
  for (auto i = static_cast<Position>(keys.size()); i-- > 0;) {
    if (uses_.size() == uses_.max_keys()) uses_.reserve(2 * uses_.max_keys());
    Uses& uses = uses_.add(keys[i]).value;
    if (uses.next != kUnknown) later_[i] = uses.next;
    uses.next = i;
  }
}

Belady::Uses* Belady::use(std::uint64_t key) {
  auto* slot = uses_.find(key);
  if (!slot) return nullptr;
  Position& next = slot->value.next;
  if (next != kNeverAgain) next = later_[next];
  return &slot->value;
}

void Belady::rank_found(const Uses& uses) {
  const std::uint32_t block = index(uses.found);
  blocks_[block].rank.sooner = ~uses.next;
  if (candidates_.contains(block)) candidates_.change(block, blocks_[block].rank);
}

KVLAB_REGISTER(BlockCache, Belady, "belady", "oracle: farthest next use, deeper first; the best for a given order of lookups",
               "Belady 1966");

}  // namespace
}  // namespace kvlab
