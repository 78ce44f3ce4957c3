#include <algorithm>

#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/block_lists.h"
#include "policies/block_cache/ghost_list.h"

namespace kvlab {
namespace {

// Ghosts B1 and B2 hold keys evicted from T1 (seen once) and T2. Referenced blocks count in T1 or T2 but are in neither list. Invariants:
// |T1| + |B1| <= C and |T1| + |T2| + |B1| + |B2| <= 2 C.
class Arc final : public BlockCache {
 public:
  explicit Arc(Params&) {}

  void reset(std::uint32_t num_blocks) override {
    num_blocks_ = num_blocks;
    blocks_.reset();
    lists_.reset(kNumLists, num_blocks);
    ghosts_[kT1].reset(num_blocks);
    ghosts_[kT2].reset(2 * num_blocks);
    size_[kT1] = size_[kT2] = 0;
    target_ = 0;
    has_ghost_hit_ = false;
  }

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t, double) override;
  void on_hit(BlockId block) override {
    Block& b = blocks_[index(block)];
    --size_[b.list];
    ++size_[kT2];
    b.list = kT2;
    if (!b.is_candidate) return;
    lists_.remove(index(block));
    lists_.push_back(kT2, index(block));
  }
  void on_acquire(BlockId block) override {
    lists_.remove(index(block));
    blocks_[index(block)].is_candidate = false;
  }
  void on_release(BlockId block) override {
    Block& b = blocks_[index(block)];
    b.is_candidate = true;
    lists_.push_back(b.list, index(block));
  }
  BlockId victim(std::uint64_t incoming) override;

 private:
  enum List : std::uint32_t { kT1, kT2, kNumLists };
  struct Block {
    std::uint64_t key = 0;
    List list = kT1;
    bool is_candidate = false;
  };

  bool take_ghost(std::uint64_t key);

  std::uint32_t num_blocks_ = 0;  // C
  PerBlock<Block> blocks_;
  BlockLists lists_;                    // least recent in front
  std::uint32_t size_[kNumLists] = {};  // |T1|, |T2|
  GhostList ghosts_[kNumLists];         // B1, B2
  double target_ = 0;                   // p
  std::uint64_t ghost_hit_ = 0;         // incoming key if victim() found it as a ghost
  bool has_ghost_hit_ = false;
};

// True if the key was a ghost; adapts p (Fig. 4, cases II and III).
bool Arc::take_ghost(std::uint64_t key) {
  const double b1 = ghosts_[kT1].size();
  const double b2 = ghosts_[kT2].size();
  if (ghosts_[kT1].erase(key)) {
    target_ = std::min(target_ + std::max(b2 / b1, 1.0), static_cast<double>(num_blocks_));
    return true;
  }
  if (ghosts_[kT2].erase(key)) {
    target_ = std::max(target_ - std::max(b1 / b2, 1.0), 0.0);
    return true;
  }
  return false;
}

// The paper trims the ghosts first; the lists are equal.
void Arc::on_insert(BlockId block, std::uint64_t key, std::uint32_t, double) {
  const bool was_ghost = (has_ghost_hit_ && ghost_hit_ == key) || take_ghost(key);
  has_ghost_hit_ = false;
  const List list = was_ghost ? kT2 : kT1;
  blocks_.inserted(index(block)) = {key, list, false};
  ++size_[list];
  while (size_[kT1] + ghosts_[kT1].size() > num_blocks_) ghosts_[kT1].drop_oldest();
  while (size_[kT1] + size_[kT2] + ghosts_[kT1].size() + ghosts_[kT2].size() > 2 * num_blocks_) ghosts_[kT2].drop_oldest();
}

// REPLACE; the other list if its choice has no candidate.
BlockId Arc::victim(std::uint64_t incoming) {
  const bool was_in_b2 = incoming != 0 && ghosts_[kT2].contains(incoming);
  has_ghost_hit_ = incoming != 0 && take_ghost(incoming);
  ghost_hit_ = incoming;
  const double t1 = size_[kT1];
  List list = t1 > target_ || (was_in_b2 && t1 == target_) ? kT1 : kT2;
  if (lists_.is_empty(list)) list = list == kT1 ? kT2 : kT1;
  const std::uint32_t oldest = lists_.front(list);
  lists_.remove(oldest);
  blocks_[oldest].is_candidate = false;
  --size_[list];
  ghosts_[list].add(blocks_[oldest].key);
  return BlockId{oldest};
}

KVLAB_REGISTER(BlockCache, Arc, "arc", "balances recency and frequency by what it regrets to have evicted", "Megiddo and Modha, FAST 2003");

}  // namespace
}  // namespace kvlab
