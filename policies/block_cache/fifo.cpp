#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/candidate_heap.h"

namespace kvlab {
namespace {

// A chain loses its first block first, so the rest is unreachable until it ages out.
class Fifo final : public BlockCache {
 public:
  explicit Fifo(Params&) {}

  void reset(std::uint32_t) override {
    inserted_.reset();
    candidates_.reset();
    num_inserted_ = 0;
  }
  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double) override { inserted_.inserted(index(block)) = num_inserted_++; }
  void on_hit(BlockId) override {}
  void on_acquire(BlockId block) override { candidates_.remove(index(block)); }
  void on_release(BlockId block) override { candidates_.push(index(block), inserted_[index(block)]); }
  BlockId victim(std::uint64_t) override { return BlockId{candidates_.pop()}; }

 private:
  PerBlock<std::uint64_t> inserted_;  // count of insertions
  CandidateHeap<std::uint64_t> candidates_;
  std::uint64_t num_inserted_ = 0;
};

KVLAB_REGISTER(BlockCache, Fifo, "fifo", "oldest insertion, hits ignored", "textbook");

}  // namespace
}  // namespace kvlab
