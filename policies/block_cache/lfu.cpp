#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/fewest_uses.h"

namespace kvlab {
namespace {

// Insertion is the first use; counts are lost with the block.
class Lfu final : public BlockCache {
 public:
  explicit Lfu(Params&) {}

  void reset(std::uint32_t) override { blocks_.reset(); }
  void on_insert(BlockId block, std::uint64_t, std::uint32_t, double) override { blocks_.insert(index(block)); }
  void on_hit(BlockId block) override { blocks_.use(index(block)); }
  void on_acquire(BlockId block) override { blocks_.acquire(index(block)); }
  void on_release(BlockId block) override { blocks_.release(index(block)); }
  BlockId victim(std::uint64_t) override { return BlockId{blocks_.pop()}; }

 private:
  FewestUses blocks_;
};

KVLAB_REGISTER(BlockCache, Lfu, "lfu", "fewest uses, oldest insertion among equals", "textbook");

}  // namespace
}  // namespace kvlab
