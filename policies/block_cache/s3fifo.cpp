#include <algorithm>

#include "policies/block_cache/block_cache.h"
#include "policies/block_cache/block_lists.h"
#include "policies/block_cache/ghost_list.h"

namespace kvlab {
namespace {

// A victim search takes referenced blocks out; their release puts them back at the oldest end.
class S3Fifo final : public BlockCache {
 public:
  explicit S3Fifo(Params& p)
      : small_frac_(p.optional<double>("small_frac", 0.1, 0.0, 1.0, "share of the blocks that the small queue may hold")),
        ghost_frac_(p.optional<double>("ghost_frac", 0.9, 0.0, 16.0, "keys remembered after eviction, per block of the cache")),
        promote_hits_(p.optional<std::uint32_t>("promote_hits", 2, 1, 1000, "hits in the small queue that lead to the main one")) {}

  void reset(std::uint32_t num_blocks) override {
    const auto small_share = static_cast<std::uint32_t>(small_frac_ * num_blocks);
    main_share_ = num_blocks - std::clamp(small_share, 1U, std::max(num_blocks, 1U));
    blocks_.reset();
    queues_.reset(kNumQueues, num_blocks);
    ghost_.reset(static_cast<std::uint32_t>(ghost_frac_ * num_blocks));
    size_[kSmall] = size_[kMain] = 0;
    incoming_ = 0;
  }

  void on_insert(BlockId block, std::uint64_t key, std::uint32_t, double) override {
    const bool was_ghost = key != 0 && incoming_ == key ? incoming_was_ghost_ : ghost_.erase(key);
    incoming_ = 0;
    const Queue queue = was_ghost ? kMain : kSmall;
    blocks_.inserted(index(block)) = {key, 0, queue, true, false};
    queues_.push_back(queue, index(block));
    ++size_[queue];
  }
  void on_hit(BlockId block) override { ++blocks_[index(block)].hits; }
  void on_acquire(BlockId block) override { blocks_[index(block)].is_referenced = true; }
  void on_release(BlockId block) override {
    Block& b = blocks_[index(block)];
    b.is_referenced = false;
    if (b.is_parked) queues_.push_front(b.queue, index(block));
    b.is_parked = false;
  }
  BlockId victim(std::uint64_t incoming) override;

 private:
  enum Queue : std::uint32_t { kSmall, kMain, kNumQueues };
  struct Block {
    std::uint64_t key = 0;
    std::uint32_t hits = 0;  // since it entered its queue, less those used up in main
    Queue queue = kSmall;
    bool is_referenced = false;
    bool is_parked = false;
  };

  bool park_referenced(Queue queue);
  void move_to_main(std::uint32_t block, std::uint32_t hits);

  double small_frac_, ghost_frac_;
  std::uint32_t promote_hits_;
  std::uint32_t main_share_ = 0;
  PerBlock<Block> blocks_;
  BlockLists queues_;                    // oldest in front
  std::uint32_t size_[kNumQueues] = {};  // blocks of each, referenced ones included
  GhostList ghost_;                      // keys evicted from the small queue
  std::uint64_t incoming_ = 0;           // the key that room was made for; 0: none
  bool incoming_was_ghost_ = false;      // and is no ghost any more
};

// False: no candidate left.
bool S3Fifo::park_referenced(Queue queue) {
  while (!queues_.is_empty(queue)) {
    const std::uint32_t oldest = queues_.front(queue);
    if (!blocks_[oldest].is_referenced) return true;
    queues_.remove(oldest);
    blocks_[oldest].is_parked = true;
  }
  return false;
}

void S3Fifo::move_to_main(std::uint32_t block, std::uint32_t hits) {
  queues_.push_back(kMain, block);
  blocks_[block].queue = kMain;
  blocks_[block].hits = hits;
  ++size_[kMain];
}

BlockId S3Fifo::victim(std::uint64_t incoming) {
  // The eviction below can push this key out of the ghost list.
  incoming_was_ghost_ = incoming != 0 && ghost_.erase(incoming);
  incoming_ = incoming;
  for (;;) {
    const bool prefers_main = size_[kMain] > main_share_ || size_[kSmall] == 0;
    Queue queue = prefers_main ? kMain : kSmall;
    if (!park_referenced(queue)) queue = queue == kMain ? kSmall : kMain;
    if (!park_referenced(queue)) throw InternalError("block cache 's3fifo': a victim was asked for, and every block is referenced");
    const std::uint32_t oldest = queues_.front(queue);
    const Block& b = blocks_[oldest];
    queues_.remove(oldest);
    --size_[queue];
    if (queue == kMain && b.hits > 0) {
      move_to_main(oldest, std::min(b.hits, 3U) - 1);
    } else if (queue == kSmall && b.hits >= promote_hits_) {
      move_to_main(oldest, 0);
    } else {
      if (queue == kSmall) ghost_.add(b.key);
      return BlockId{oldest};
    }
  }
}

KVLAB_REGISTER(BlockCache, S3Fifo, "s3fifo", "small, main and ghost FIFO queues: blocks used once leave early", "Yang et al., SOSP 2023");

}  // namespace
}  // namespace kvlab
