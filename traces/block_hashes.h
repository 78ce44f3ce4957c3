#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "traces/trace.h"

namespace kvlab {

// Leading tokens that a request's n hashes certainly cover.
//   n * hash_tokens <= prompt_tokens      n * hash_tokens
//   hash n - 1 crosses the prompt's end   prompt_tokens: the last chunk may be partial (Mooncake) or include generated tokens
//                                         (LLMServingSim)
//   hashes continue after that chunk      n * hash_tokens: generated tokens are hashed too
inline std::int64_t covered_tokens(const TraceRequest& request) {
  const auto num_hashes = static_cast<std::int64_t>(request.hashes.size());
  const std::int64_t named = num_hashes * request.hash_tokens;
  const bool last_crosses = named > request.prompt_tokens && named - request.hash_tokens < request.prompt_tokens;
  return last_crosses ? request.prompt_tokens : named;
}

// 0 if no chunk size divides the other.
inline std::uint32_t num_block_hashes(const TraceRequest& request, std::int32_t block_tokens) {
  if (request.hashes.empty()) return 0;
  if (request.hash_tokens % block_tokens != 0 && block_tokens % request.hash_tokens != 0) return 0;
  return static_cast<std::uint32_t>(covered_tokens(request) / block_tokens);
}

// Throws InputError for another block size.
inline void check_block_tokens(const TraceRequest& request, std::int32_t block_tokens) {
  if (request.hashes.empty() || request.hash_tokens % block_tokens == 0 || block_tokens % request.hash_tokens == 0) return;
  throw InputError("block_tokens = " + std::to_string(block_tokens) + " does not fit the trace, which names its content per " +
                   std::to_string(request.hash_tokens) + " tokens: one must divide the other");
}

// Covers tokens [0, (i + 1) * block_tokens), i < num_block_hashes(); equal hashes mean equal prefixes. Parts of a hashed chunk combine hash
// and place.
inline std::uint64_t block_hash(std::int32_t hash_tokens, std::span<const std::uint64_t> hashes, std::int32_t block_tokens,
                                std::uint32_t i) {
  if (hash_tokens == block_tokens) return hashes[i];
  if (hash_tokens > block_tokens) {
    const auto parts = static_cast<std::uint32_t>(hash_tokens / block_tokens);
    // Parts of a chunk are neighbours in a KeyMap.
    const std::uint32_t part = i % parts;
    return (hash_combine(hashes[i / parts], part >> 5) & ~std::uint64_t{31}) | (part & 31);
  }
  const auto chunks = static_cast<std::size_t>(block_tokens / hash_tokens);
  return hashes[(i + std::size_t{1}) * chunks - 1];
}

// Keys first, first + 1, ... that differ only in their last kBits bits.
struct KeyRun {
  static constexpr unsigned kBits = 3;
  std::uint64_t first = 0;
  std::uint32_t count = 0;
};

// Consecutive block_hash() from `first`. Without hashes next() must not be called.
class BlockHashes {
 public:
  BlockHashes(std::int32_t hash_tokens, std::span<const std::uint64_t> hashes, std::int32_t block_tokens, std::uint32_t first)
      : hashes_(hashes) {
    if (hashes.empty()) return;
    if (hash_tokens > block_tokens) {
      parts_ = static_cast<std::uint32_t>(hash_tokens / block_tokens);
      at_ = first / parts_;
      part_ = first % parts_;
      if (part_ % kGroup != 0) begin_group();
    } else {
      chunks_ = static_cast<std::size_t>(block_tokens / hash_tokens);
      at_ = (first + std::size_t{1}) * chunks_ - 1;
    }
  }
  std::uint64_t next() {
    if (parts_ == 0) {
      const std::uint64_t hash = hashes_[at_];
      at_ += chunks_;
      return hash;
    }
    return next_parts(1).first;
  }
  // At most `most` hashes, at least one.
  KeyRun next_run(std::uint32_t most) {
    if (parts_ == 0) return {next(), 1};
    return next_parts(std::min({most, kRun - part_ % kRun, parts_ - part_}));
  }

 private:
  static constexpr std::uint32_t kGroup = 32, kRun = 1U << KeyRun::kBits;
  // Of one group.
  KeyRun next_parts(std::uint32_t count) {
    if (part_ % kGroup == 0) begin_group();
    const KeyRun run{group_ | (part_ % kGroup), count};
    part_ += count;
    if (part_ == parts_) {
      part_ = 0;
      ++at_;
    }
    return run;
  }
  void begin_group() { group_ = hash_combine(hashes_[at_], part_ / kGroup) & ~std::uint64_t{kGroup - 1}; }

  std::span<const std::uint64_t> hashes_;
  std::size_t at_ = 0, chunks_ = 1;     // chunks_: per block
  std::uint32_t parts_ = 0, part_ = 0;  // parts_ 0: a block is no part
  std::uint64_t group_ = 0;
};

}  // namespace kvlab
