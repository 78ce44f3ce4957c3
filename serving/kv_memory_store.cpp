// Prompt writes to the store in CPU memory.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "serving/kv_memory.h"

namespace kvlab {

bool KvMemory::begin_write(const Request& r, SwapCopy& copy) {
  const std::int64_t ratio = store->block_tokens() / limits_.block_tokens;
  StoreWrite write{store->begin_write(trace_request_of(r), std::ssize(r.blocks) / ratio), {}};
  if (write.write.fresh.empty()) {
    store->end_write(write.write);
    return false;
  }
  for (const NodeStore::Write::Fresh& fresh : write.write.fresh) {
    const auto first = r.blocks.begin() + static_cast<std::ptrdiff_t>(fresh.number * ratio);
    write.from.insert(write.from.end(), first, first + ratio);
  }
  for (const BlockId block : write.from) pool_->acquire(block);
  auto at = std::find_if(writes_.begin(), writes_.end(), [](const StoreWrite& w) { return w.from.empty(); });
  if (at == writes_.end()) at = writes_.emplace(writes_.end());
  copy = {RequestId{static_cast<std::uint32_t>(at - writes_.begin())}, std::ssize(write.from), true, std::ssize(write.write.fresh)};
  copy.is_stored = true;
  *at = std::move(write);
  return true;
}

void KvMemory::end_write(RequestId number) {
  StoreWrite& write = writes_[index(number)];
  store->end_write(write.write);
  pool_->release_reversed(write.from);
  write = {};
  hits_valid_ = false;
}

std::int64_t KvMemory::pinned_by_writes() const {
  std::int64_t pinned = 0;
  for (const StoreWrite& write : writes_) pinned += std::ssize(write.write.blocks);
  return pinned;
}

std::int32_t KvMemory::find_cached_tokens(const Request& r) {
  hits_valid_ = false;
  find_hits(r);
  return static_cast<std::int32_t>(hits_.size()) * limits_.block_tokens;
}

}  // namespace kvlab
