#include "serving/node_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "traces/block_hashes.h"

namespace kvlab {

NodeStore::NodeStore(std::int64_t num_blocks, std::int32_t block_tokens, std::unique_ptr<BlockCache> eviction)
    : block_tokens_(block_tokens), pool_(static_cast<std::uint32_t>(num_blocks), 1, std::move(eviction)) {}

std::uint64_t NodeStore::key_of(const TraceRequest& prompt, std::int64_t block) const {
  return block_hash(prompt.hash_tokens, prompt.hashes, block_tokens_, static_cast<std::uint32_t>(block));
}

std::int64_t NodeStore::blocks_of(const TraceRequest& prompt) const {
  check_block_tokens(prompt, block_tokens_);
  return std::min<std::int64_t>(num_block_hashes(prompt, block_tokens_), prompt.prompt_tokens / block_tokens_);
}

std::int64_t NodeStore::leading_blocks(const TraceRequest& prompt) const {
  const std::int64_t most = blocks_of(prompt);
  std::int64_t found = 0;
  while (found < most && pool_.peek(key_of(prompt, found)) != kNoBlock) ++found;
  return found;
}

std::vector<BlockId> NodeStore::pin(const TraceRequest& prompt, std::int64_t first, std::int64_t end) {
  std::vector<BlockId> blocks;
  for (std::int64_t i = first; i < end; ++i) {
    const BlockId block = pool_.find(key_of(prompt, i));
    if (block == kNoBlock) throw InternalError("pinning a block that the store does not have");
    pool_.note_hit(block);
    pool_.acquire(block);
    blocks.push_back(block);
  }
  return blocks;
}

void NodeStore::unpin(const std::vector<BlockId>& blocks) { pool_.release_reversed(blocks); }

NodeStore::Write NodeStore::begin_write(const TraceRequest& prompt, std::int64_t most) {
  const std::int64_t count = std::min(most, blocks_of(prompt));
  std::vector<BlockId> here;
  for (std::int64_t i = 0; i < count; ++i) {
    here.push_back(pool_.find(key_of(prompt, i)));
    if (here.back() == kNoBlock) continue;
    pool_.note_hit(here.back());
    pool_.acquire(here.back());
  }
  Write write;
  for (std::int64_t i = 0; i < count; ++i) {
    BlockId block = here[static_cast<std::size_t>(i)];
    if (block == kNoBlock) {
      if (pool_.free_blocks() == 0) {
        ++use_.no_room_blocks;
        continue;
      }
      block = pool_.take();
      ++changes_;
      write.fresh.push_back({block, key_of(prompt, i), static_cast<std::uint32_t>(i)});
    }
    write.blocks.push_back(block);
  }
  return write;
}

void NodeStore::end_write(const Write& write) {
  for (const Write::Fresh& fresh : write.fresh) {
    if (pool_.peek(fresh.key) != kNoBlock) continue;  // written meanwhile
    pool_.publish(fresh.block, fresh.key, fresh.number, 0);
    ++changes_;
    ++use_.written_blocks;
  }
  pool_.release_reversed(write.blocks);
}

void NodeStore::check(std::int64_t pinned) const {
  const std::int64_t references = pool_.check();
  if (references != pinned)
    throw InternalError("references to blocks of a store are not conserved: " + std::to_string(references) + " against " +
                        std::to_string(pinned));
}

}  // namespace kvlab
