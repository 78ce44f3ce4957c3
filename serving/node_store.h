#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "policies/block_cache/block_cache.h"
#include "serving/block_pool.h"
#include "traces/trace.h"

namespace kvlab {

// Keeping the KV of prompts in CPU memory (Mooncake, Qin et al. 2024, arXiv:2407.00079). Each prefill replica has a NodeStore, and
// replicas fetch prefixes from each other's.
struct StoreSetup {
  std::int32_t block_tokens = 0;                               // of a stored block, a multiple of every pool's block_tokens; 0: no stores
  std::function<std::unique_ptr<BlockCache>()> make_eviction;  // chooses the block to evict, among those without a reader
  [[nodiscard]] bool is_on() const { return block_tokens > 0; }
};

// The part of a store in the CPU memory of one replica. The key of a block is the hash of all tokens of the prompt up to the block's end.
// Readers and writers hold a reference to a block; only blocks without references are evicted.
class NodeStore {
 public:
  NodeStore(std::int64_t num_blocks, std::int32_t block_tokens, std::unique_ptr<BlockCache> eviction);

  [[nodiscard]] std::int32_t block_tokens() const { return block_tokens_; }
  // Full blocks of the prompt whose content its hashes name. InputError: the trace's hashes do not fit the block size.
  [[nodiscard]] std::int64_t blocks_of(const TraceRequest& prompt) const;
  // The number of leading blocks of the prompt that are here. O(that number).
  [[nodiscard]] std::int64_t leading_blocks(const TraceRequest& prompt) const;

  // References to the prompt's blocks [first, end), which are here; unpin() gives them back.
  std::vector<BlockId> pin(const TraceRequest& prompt, std::int64_t first, std::int64_t end);
  void unpin(const std::vector<BlockId>& blocks);

  // The prompt's blocks on their way here. Those that are here already are referenced, which makes them the last to be evicted.
  struct Write {
    struct Fresh {
      BlockId block{};
      std::uint64_t key = 0;
      std::uint32_t number = 0;  // in its prompt
    };
    std::vector<Fresh> fresh;     // that come from GPU memory
    std::vector<BlockId> blocks;  // these and the others, in order, with a reference each
  };
  // Allocates room for the first `most` blocks, or for the number of them that fits.
  Write begin_write(const TraceRequest& prompt, std::int64_t most);
  // The copy has ended: other requests find the blocks.
  void end_write(const Write& write);

  struct Use {
    std::int64_t written_blocks = 0;  // that came from GPU memory, each content once
    std::int64_t loaded_bytes = 0;    // to GPU memory of this replica
    std::int64_t no_room_blocks = 0;  // that found only blocks with references
  };
  [[nodiscard]] Use& use() { return use_; }
  [[nodiscard]] const Use& use() const { return use_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  // Rises whenever prompts may find other blocks than before.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }

  // Conservation: all references are those of `pinned` blocks that readers and writes hold. Throws InternalError. O(blocks).
  void check(std::int64_t pinned) const;

 private:
  [[nodiscard]] std::uint64_t key_of(const TraceRequest& prompt, std::int64_t block) const;

  std::int32_t block_tokens_;
  BlockPool pool_;
  Use use_;
  std::uint64_t changes_ = 0;
};

}  // namespace kvlab
