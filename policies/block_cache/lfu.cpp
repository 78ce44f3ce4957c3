#include <compare>

#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {
namespace {

// Insertion is the first use; counts are lost with the block.
class Lfu final : public BlockCache {
 public:
  explicit Lfu(Params&) {}

  void reset(std::uint32_t) override {
    uses_.reset();
    candidates_.reset();
    num_inserted_ = 0;
  }
  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double) override { uses_.inserted(index(block)) = {1, num_inserted_++}; }
  void on_hit(BlockId block) override {
    Uses& uses = uses_[index(block)];
    ++uses.count;
    if (candidates_.contains(index(block))) candidates_.change(index(block), uses);
  }
  void on_acquire(BlockId block) override { candidates_.remove(index(block)); }
  void on_release(BlockId block) override { candidates_.push(index(block), uses_[index(block)]); }
  BlockId victim(std::uint64_t) override { return BlockId{candidates_.pop()}; }

 private:
  struct Uses {
    std::uint64_t count = 0;
    std::uint64_t inserted = 0;  // count of insertions
    auto operator<=>(const Uses&) const = default;
  };

  PerBlock<Uses> uses_;
  CandidateHeap<Uses> candidates_;
  std::uint64_t num_inserted_ = 0;
};

KVLAB_REGISTER(BlockCache, Lfu, "lfu", "fewest uses, oldest insertion among equals", "textbook");

}  // namespace
}  // namespace kvlab
