#include <compare>
#include <limits>
#include <vector>

#include "base/config/key_map.h"
#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {

namespace {

// The candidate of smallest rank leaves.
template <class Rank>
class RankedCache : public BlockCache {
 public:
  void reset(std::uint32_t) override {
    ranks_.reset();
    candidates_.reset();
    count_ = 0;
  }
  void on_acquire(BlockId block) final { candidates_.remove(index(block)); }
  void on_release(BlockId block) override { candidates_.push(index(block), ranks_[index(block)]); }
  BlockId victim(std::uint64_t) override { return BlockId{candidates_.pop()}; }

 protected:
  // The block has a new rank.
  void renew(std::uint32_t block) {
    if (candidates_.contains(block)) candidates_.change(block, ranks_[block]);
  }

  PerBlock<Rank> ranks_;
  CandidateHeap<Rank> candidates_;
  std::uint64_t count_ = 0;  // of insertions or releases
};

// A chain loses its first block first, so the rest is unreachable until it ages out.
class Fifo final : public RankedCache<std::uint64_t> {
 public:
  explicit Fifo(Params&) {}

  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double) override { ranks_.inserted(index(block)) = count_++; }
  void on_hit(BlockId) override {}
};

KVLAB_REGISTER(BlockCache, Fifo, "fifo", "oldest insertion, hits ignored", "textbook");

struct UseCount {
  std::uint64_t count = 0;
  std::uint64_t inserted = 0;  // count of insertions
  auto operator<=>(const UseCount&) const = default;
};

// Insertion is the first use; counts are lost with the block.
class Lfu final : public RankedCache<UseCount> {
 public:
  explicit Lfu(Params&) {}

  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double) override { ranks_.inserted(index(block)) = {1, count_++}; }
  void on_hit(BlockId block) override {
    ++ranks_[index(block)].count;
    renew(index(block));
  }
};

KVLAB_REGISTER(BlockCache, Lfu, "lfu", "fewest uses, oldest insertion among equals", "textbook");

struct Worth {
  double h = 0;
  std::uint64_t released = 0;  // count of releases
  auto operator<=>(const Worth&) const = default;
};

// H = clock + uses * cost / size (Cherkasova 1998), all sizes equal; the clock moves to the evicted H. Ties: least recently released.
class Gdsf final : public RankedCache<Worth> {
 public:
  explicit Gdsf(Params&) {}

  [[nodiscard]] bool weighs_cost() const override { return true; }
  void reset(std::uint32_t num_blocks) override {
    RankedCache::reset(num_blocks);
    blocks_.reset();
    clock_ = 0;
  }
  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double cost_s) override {
    const double cost = cost_s > 0 ? cost_s : 1;  // unknown: equal costs
    blocks_.inserted(index(block)) = {cost, 1};
    ranks_.inserted(index(block)) = {clock_ + cost, 0};
  }
  void on_hit(BlockId block) override {
    Block& b = blocks_[index(block)];
    ++b.uses;
    ranks_[index(block)].h = clock_ + b.uses * b.cost;
    renew(index(block));
  }
  void on_release(BlockId block) override {
    ranks_[index(block)].released = ++count_;
    RankedCache::on_release(block);
  }
  BlockId victim(std::uint64_t incoming) override {
    const BlockId cheapest = RankedCache::victim(incoming);
    clock_ = ranks_[index(cheapest)].h;
    return cheapest;
  }

 private:
  struct Block {
    double cost = 1;  // seconds, or 1
    double uses = 0;
  };

  PerBlock<Block> blocks_;
  double clock_ = 0;
};

KVLAB_REGISTER(BlockCache, Gdsf, "gdsf", "smallest clock + uses * recompute seconds / size", "Cherkasova 1998 (GreedyDual-Size-Frequency)");

struct NextUse {  // complements: smallest is farthest and deepest
  std::uint32_t sooner = 0;
  std::uint32_t shallower = 0;
  auto operator<=>(const NextUse&) const = default;
};

// Belady's MIN; ties: deepest. Optimal for the announced order of uses; with time that order depends on the cache. on_hit and on_insert
// take the key's earliest remaining use. Only one of several blocks with equal keys is used again.
class Belady final : public RankedCache<NextUse> {
 public:
  explicit Belady(Params&) {}

  void reset(std::uint32_t num_blocks) override {
    RankedCache::reset(num_blocks);
    keys_.reset();
    set_future({});
  }
  [[nodiscard]] bool needs_future() const override { return true; }

  void set_future(std::span<const std::uint64_t> keys) override {
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

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t depth, double) override {
    keys_.inserted(index(block)) = key;
    ranks_.inserted(index(block)) = {~kNeverAgain, ~depth};
    if (Uses* uses = use(key)) {
      if (uses->found == kNoBlock) uses->found = block;
      rank_found(*uses);
    }
  }
  void on_hit(BlockId block) override {
    if (Uses* uses = use(keys_[index(block)])) {
      uses->found = block;
      rank_found(*uses);
    }
  }
  BlockId victim(std::uint64_t incoming) override {
    const BlockId farthest = RankedCache::victim(incoming);
    auto* slot = uses_.find(keys_[index(farthest)]);
    if (slot && slot->value.found == farthest) slot->value.found = kNoBlock;
    return farthest;
  }

 private:
  using Position = std::uint32_t;
  static constexpr Position kNeverAgain = std::numeric_limits<Position>::max();
  static constexpr Position kUnknown = kNeverAgain - 1;

  struct Uses {
    Position next = kUnknown;
    BlockId found = kNoBlock;  // by lookups of the key
    bool operator==(const Uses&) const = default;
  };

  Uses* use(std::uint64_t key) {
    auto* slot = uses_.find(key);
    if (!slot) return nullptr;
    Position& next = slot->value.next;
    if (next != kNeverAgain) next = later_[next];
    return &slot->value;
  }

  void rank_found(const Uses& uses) {
    ranks_[index(uses.found)].sooner = ~uses.next;
    renew(index(uses.found));
  }

  PerBlock<std::uint64_t> keys_;
  std::vector<Position> later_;  // [length of the future]
  KeyMap<Uses> uses_;            // key -> its first remaining use
};

KVLAB_REGISTER(BlockCache, Belady, "belady", "oracle: farthest next use, deeper first; the best for a given order of lookups",
               "Belady 1966");

}  // namespace

}  // namespace kvlab
