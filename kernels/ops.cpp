#include "kernels/ops.h"

#include <algorithm>

namespace kvlab {

void* Ops::allocate(std::int64_t bytes) {
  constexpr std::size_t kChunkWords = 1 << 17, kLineWords = 8;  // allocations start on 64-byte lines relative to a chunk
  const std::size_t words = (static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)) + 63) / 64 * kLineWords;
  while (chunk_ < chunks_.size() && used_ + words > chunks_[chunk_].size()) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) chunks_.emplace_back(std::max(words, kChunkWords)), used_ = 0;
  void* at = chunks_[chunk_].data() + used_;
  used_ += words;
  return at;
}

}  // namespace kvlab
