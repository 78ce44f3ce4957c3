#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "traces/trace.h"

namespace kvlab {

// Tokens of a request, counted from its start, whose content its hashes cover for certain.
//   n * hash_tokens <= prompt_tokens      n * hash_tokens: the hashes end in the prompt.
//   hash n - 1 crosses the prompt's end   prompt_tokens: it may cover a partial chunk of the prompt (Mooncake) or generated
//                                         tokens as well (LLMServingSim), and a trace does not say which.
//   hashes continue after that chunk      n * hash_tokens: generated tokens are hashed too.
inline std::int64_t covered_tokens(const TraceRequest& request) {
  const auto num_hashes = static_cast<std::int64_t>(request.hashes.size());
  const std::int64_t named = num_hashes * request.hash_tokens;
  const bool last_crosses = named > request.prompt_tokens && named - request.hash_tokens < request.prompt_tokens;
  return last_crosses ? request.prompt_tokens : named;
}

// How many leading blocks of `block_tokens` tokens have a known content: floor(covered_tokens / block_tokens) where one of
// the two chunk sizes divides the other, else 0. Never counts a block that reaches beyond what the hashes cover.
inline std::uint32_t num_block_hashes(const TraceRequest& request, std::int32_t block_tokens) {
  if (request.hashes.empty()) return 0;
  if (request.hash_tokens % block_tokens != 0 && block_tokens % request.hash_tokens != 0) return 0;
  return static_cast<std::uint32_t>(covered_tokens(request) / block_tokens);
}

// InputError: the trace has hashes, but none can be derived for blocks of this size.
inline void check_block_tokens(const TraceRequest& request, std::int32_t block_tokens) {
  if (request.hashes.empty() || request.hash_tokens % block_tokens == 0 || block_tokens % request.hash_tokens == 0) return;
  throw InputError("block_tokens = " + std::to_string(block_tokens) + " does not fit the trace, which names its content per " +
                   std::to_string(request.hash_tokens) + " tokens: one must divide the other");
}

// The hash of tokens [0, (i + 1) * block_tokens), for i < num_block_hashes(): equal hashes mean equal prefixes. A block that is a part of a
// hashed chunk is hashed from the chunk's hash and its place in it.
inline std::uint64_t block_hash(std::int32_t hash_tokens, std::span<const std::uint64_t> hashes, std::int32_t block_tokens,
                                std::uint32_t i) {
  if (hash_tokens == block_tokens) return hashes[i];
  if (hash_tokens > block_tokens) {
    const auto parts = static_cast<std::uint32_t>(hash_tokens / block_tokens);
    // Parts of one chunk differ in their last five bits, which keeps them together in a KeyMap.
    const std::uint32_t part = i % parts;
    return (hash_combine(hashes[i / parts], part >> 5) & ~std::uint64_t{31}) | (part & 31);
  }
  const auto chunks = static_cast<std::size_t>(block_tokens / hash_tokens);
  return hashes[(i + std::size_t{1}) * chunks - 1];
}

}  // namespace kvlab
