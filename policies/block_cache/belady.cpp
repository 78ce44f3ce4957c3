#include <compare>
#include <limits>
#include <vector>

#include "base/key_map.h"
#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {
namespace {

// Belady's MIN: victim = the block whose key is used farthest in the future, the deepest among equals. It knows the order of
// uses from set_future() and counts on_hit and on_insert to know where in it the host is. So it is the best possible cache
// for that order; in a simulation with time the order depends on the cache, and it is the bound for the recorded order only.
// A chain is looked up from its front, so a block's next use comes before that of every block behind it in the chain: what
// is cached of a chain is always a prefix.
class Belady final : public BlockCache {
 public:
  explicit Belady(Params&) {}

  void reset(std::uint32_t num_blocks) override {
    blocks_.assign(num_blocks, {});
    candidates_.reset(num_blocks);
    set_future({});
  }
  [[nodiscard]] bool needs_future() const override { return true; }
  void set_future(std::span<const std::uint64_t> keys) override;

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double) override {
    blocks_[index(block)] = {key, {~use(key), ~depth}};
  }
  void on_hit(BlockId block) override {
    Block& b = blocks_[index(block)];
    b.rank.sooner = ~use(b.key);
    if (candidates_.contains(index(block))) candidates_.change(index(block), b.rank);
  }
  void on_acquire(BlockId block) override { candidates_.remove(index(block)); }
  void on_release(BlockId block) override { candidates_.push(index(block), blocks_[index(block)].rank); }
  BlockId victim(std::uint64_t) override {
    const std::uint32_t farthest = candidates_.top();
    candidates_.remove(farthest);
    return BlockId{farthest};
  }

 private:
  using Position = std::uint32_t;
  static constexpr Position kNeverAgain = std::numeric_limits<Position>::max();
  static constexpr Position kUnknown = kNeverAgain - 1;

  struct Rank {  // complements, so that the smallest rank is the farthest and deepest
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
    bool operator==(const Uses&) const = default;
  };

  Position use(std::uint64_t key);

  std::vector<Block> blocks_;    // [num_blocks]
  std::vector<Position> later_;  // [length of the future] the next use of the same key
  KeyMap<Uses> uses_;            // key -> its first use at or after position_, once asked for
  Position position_ = 0;
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
  position_ = 0;
}

// Takes one step into the future, and says when `key` will be used after that.
Belady::Position Belady::use(std::uint64_t key) {
  if (position_ < kUnknown) ++position_;
  auto* slot = uses_.find(key);
  if (!slot) return kNeverAgain;
  Position& next = slot->value.next;
  while (next < position_) next = later_[next];
  return next;
}

[[maybe_unused]] const bool registered = BlockCacheRegistry::add<Belady>(
    {"belady", "oracle: farthest next use, deeper first; the best for a given order of lookups", "Belady 1966"});

}  // namespace
}  // namespace kvlab
