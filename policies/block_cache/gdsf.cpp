#include <compare>

#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {
namespace {

// H = clock + uses * cost / size (Cherkasova 1998), all sizes equal; the clock moves to the evicted H. Ties: least recently released.
class Gdsf final : public BlockCache {
 public:
  explicit Gdsf(Params&) {}

  [[nodiscard]] bool weighs_cost() const override { return true; }
  void reset(std::uint32_t) override {
    blocks_.reset();
    candidates_.reset();
    clock_ = 0;
    num_released_ = 0;
  }
  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double cost_s) override {
    const double cost = cost_s > 0 ? cost_s : 1;  // unknown: equal costs
    blocks_.inserted(index(block)) = {clock_ + cost, cost, 1, 0};
  }
  void on_hit(BlockId block) override {
    Block& b = blocks_[index(block)];
    ++b.uses;
    b.h = clock_ + b.uses * b.cost;
    if (candidates_.contains(index(block))) candidates_.change(index(block), {b.h, b.released});
  }
  void on_acquire(BlockId block) override { candidates_.remove(index(block)); }
  void on_release(BlockId block) override {
    Block& b = blocks_[index(block)];
    b.released = ++num_released_;
    candidates_.push(index(block), {b.h, b.released});
  }
  BlockId victim(std::uint64_t) override {
    const std::uint32_t cheapest = candidates_.pop();
    clock_ = blocks_[cheapest].h;
    return BlockId{cheapest};
  }

 private:
  struct Block {
    double h = 0;
    double cost = 1;  // seconds, or 1
    double uses = 0;
    std::uint64_t released = 0;  // count of releases
  };
  struct Rank {
    double h;
    std::uint64_t released;
    auto operator<=>(const Rank&) const = default;
  };

  PerBlock<Block> blocks_;
  CandidateHeap<Rank> candidates_;
  double clock_ = 0;
  std::uint64_t num_released_ = 0;
};

KVLAB_REGISTER(BlockCache, Gdsf, "gdsf", "smallest clock + uses * recompute seconds / size", "Cherkasova 1998 (GreedyDual-Size-Frequency)");

}  // namespace
}  // namespace kvlab
