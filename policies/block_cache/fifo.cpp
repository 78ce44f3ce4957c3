#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/fewest_uses.h"

namespace kvlab {
namespace {

// A chain loses its first block first, so the rest is unreachable until it ages out.
class Fifo final : public BlockCache {
 public:
  explicit Fifo(Params&) {}

  void reset(std::uint32_t) override { blocks_.reset(); }
  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double) override { blocks_.insert(index(block)); }
  void on_hit(BlockId) override {}
  void on_acquire(BlockId block) override { blocks_.acquire(index(block)); }
  void on_release(BlockId block) override { blocks_.release(index(block)); }
  BlockId victim(std::uint64_t) override { return BlockId{blocks_.pop()}; }

 private:
  FewestUses blocks_;  // hits are no uses
};

KVLAB_REGISTER(BlockCache, Fifo, "fifo", "oldest insertion, hits ignored", "textbook");

}  // namespace
}  // namespace kvlab
