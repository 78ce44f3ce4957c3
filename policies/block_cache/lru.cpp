#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/block_lists.h"

namespace kvlab {
namespace {

// Blank blocks included. Requests release their deepest block first, so deeper blocks are older.
class Lru final : public BlockCache {
 public:
  explicit Lru(Params&) {}

  void reset(std::uint32_t num_blocks) override {
    free_.reset(1, num_blocks);
    num_blocks_ = num_blocks;
    num_begun_ = 0;
  }
  [[nodiscard]] bool orders_blank_blocks() const override { return true; }
  void on_insert(BlockId, std::uint64_t, std::uint32_t, double) override {}
  [[nodiscard]] bool ignores_insertions() const override { return true; }
  void on_hit(BlockId) override {}
  void on_acquire(BlockId block) override { free_.remove(index(block)); }
  void on_release(BlockId block) override { free_.push_back(0, index(block)); }
  void on_releases(std::span<const BlockId> blocks) override { free_.push_back(0, blocks); }
  BlockId victim(std::uint64_t) override {
    if (num_begun_ < num_blocks_) return BlockId{num_begun_++};
    const std::uint32_t oldest = free_.front(0);
    free_.remove(oldest);
    return BlockId{oldest};
  }
  void victims(std::size_t count, std::vector<BlockId>& blocks) override {
    for (; count > 0 && num_begun_ < num_blocks_; --count) blocks.push_back(Lru::victim(0));
    if (count > 0) free_.pop_front(0, count, blocks);
  }

 private:
  BlockLists free_;
  // Blocks from here on were never taken and are in no list.
  std::uint32_t num_begun_ = 0, num_blocks_ = 0;
};

KVLAB_REGISTER(BlockCache, Lru, "lru", "least recently released block, deeper first: the order of the engine's free list",
               "vLLM v1 (v0.19), block pool");

}  // namespace
}  // namespace kvlab
