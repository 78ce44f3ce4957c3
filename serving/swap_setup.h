#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"
#include "base/int128.h"
#include "base/time.h"
#include "policies/kv/footprint.h"

namespace kvlab {

// The form of KV in CPU memory, if it differs: encoded before a copy out, decoded after a copy in.
struct SwapCodec {
  std::int64_t block_bytes = 0;  // per encoded block, on the link and in CPU memory; 0: no codec
  PolicyOp encode, decode;       // GPU work per block; `launches`: per step
  [[nodiscard]] bool is_on() const { return block_bytes > 0; }
};

struct SwapSetup {
  // kNone: the next step waits for copies out; copies in run during steps. kOut: copies out also run during steps; a step waits for those
  // of blocks that it writes. kAdaptive: kOut, and a step waits for a copy in if that costs fewer tokens (FastSwitch, Shen et al. 2024,
  // arXiv:2411.18424, section 3.2).
  enum class Overlap : std::uint8_t { kNone, kOut, kAdaptive };
  Overlap overlap = Overlap::kNone;
  bool keeps_turns = false;  // a turn's copy stays for the session's next turn
  SwapCodec codec;
};

// Of one rank.
struct RankMemory {
  std::int32_t block_tokens = 16;
  std::int64_t host_blocks = 0;        // in CPU memory, for swapped blocks
  std::int32_t swap_group_blocks = 1;  // maximum of adjacent blocks per copy call
  bool keeps_host_copies = false;      // of requests that came back, while CPU memory suffices
  SwapSetup swap;
  bool prefix_caching = true;
};

// True: waiting for a copy in until `end` costs no more tokens than continuing, which costs the request a token per earlier step. Waiting
// beyond `waited` delays it and `rows` others. step: time of a step with the request; 0: unknown.
inline bool waits_for_copy_in(std::int64_t rows, Span step, Span waited, Span end) {
  if (step <= Span{0}) return false;
  const Int128 missed = ceil_div(ns(end), ns(step)) * Int128{ns(step)};
  return (rows + 1) * Int128{ns(std::max(Span{0}, end - waited))} <= missed;
}

}  // namespace kvlab
