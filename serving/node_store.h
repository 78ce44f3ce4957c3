#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "policies/block_cache/block_cache.h"
#include "serving/block_pool.h"
#include "traces/trace.h"

namespace kvlab {

// KV of prompts in CPU memory (Mooncake, Qin et al. 2024, arXiv:2407.00079), one NodeStore per prefill replica; replicas fetch from each
// other.
struct StoreSetup {
  std::int32_t block_tokens = 0;                               // a multiple of every pool's block_tokens; 0: no stores
  std::function<std::unique_ptr<BlockCache>()> make_eviction;  // among blocks without a reader
  [[nodiscard]] bool is_on() const { return block_tokens > 0; }
};

// A block's key is the hash of all prompt tokens up to its end. Readers and writers hold references; only blocks without references are
// evicted.
class NodeStore {
 public:
  NodeStore(std::int64_t num_blocks, std::int32_t block_tokens, std::unique_ptr<BlockCache> eviction);

  [[nodiscard]] std::int32_t block_tokens() const { return block_tokens_; }
  // Full blocks of the prompt with hashes. Throws InputError if the trace's hashes do not fit the block size.
  [[nodiscard]] std::int64_t blocks_of(const TraceRequest& prompt) const;
  // Leading blocks of the prompt that are here. O(result).
  [[nodiscard]] std::int64_t leading_blocks(const TraceRequest& prompt) const;

  // References to the prompt's blocks [first, end), which must be here; unpin() releases them.
  std::vector<BlockId> pin(const TraceRequest& prompt, std::int64_t first, std::int64_t end);
  void unpin(const std::vector<BlockId>& blocks);

  // A prompt's blocks that are being written. Blocks already here get a reference, and are evicted last.
  struct Write {
    struct Fresh {
      BlockId block{};
      std::uint64_t key = 0;
      std::uint32_t number = 0;
    };
    std::vector<Fresh> fresh;     // from GPU memory
    std::vector<BlockId> blocks;  // all, in order, with a reference each
  };
  // Room for the first `most` blocks, or for fewer if they do not fit.
  Write begin_write(const TraceRequest& prompt, std::int64_t most);
  // Other requests find the blocks now.
  void end_write(const Write& write);

  struct Use {
    std::int64_t written_blocks = 0;  // from GPU memory, each content once
    std::int64_t loaded_bytes = 0;    // to GPU memory of this replica
    std::int64_t no_room_blocks = 0;  // all resident blocks had references
  };
  [[nodiscard]] Use& use() { return use_; }
  [[nodiscard]] const Use& use() const { return use_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  // Rises when lookups may give other results.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }

  // Conservation: readers and writes hold `pinned` references. Throws InternalError. O(blocks).
  void check(std::int64_t pinned) const;

 private:
  [[nodiscard]] std::uint64_t key_of(const TraceRequest& prompt, std::int64_t block) const;

  std::int32_t block_tokens_;
  BlockPool pool_;
  Use use_;
  std::uint64_t changes_ = 0;
};

}  // namespace kvlab
