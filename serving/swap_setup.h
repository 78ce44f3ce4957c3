#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"
#include "base/int128.h"
#include "base/time.h"
#include "policies/kv/footprint.h"

namespace kvlab {

// The form of KV in CPU memory, if it is not that on the GPU: encoded before a copy out, decoded after a copy in.
struct SwapCodec {
  std::int64_t block_bytes = 0;  // of an encoded block, on the link and in CPU memory; 0: copies are as they are
  PolicyOp encode, decode;       // work on the GPU of one block; `launches`: of all blocks that a step encodes, or decodes
  [[nodiscard]] bool is_on() const { return block_bytes > 0; }
};

// How KV is swapped between GPU and CPU memory, beyond the link and its calls.
struct SwapSetup {
  // kNone: the next step waits for copies out; copies in run during steps. kOut: copies out run during steps as well, and a step waits for
  // those whose blocks it writes. kAdaptive: kOut, and a step waits for a copy in if that costs fewer tokens (FastSwitch, Shen et al.
  // 2024, arXiv:2411.18424, section 3.2).
  enum class Overlap : std::uint8_t { kNone, kOut, kAdaptive };
  Overlap overlap = Overlap::kNone;
  bool keeps_turns = false;  // copies of a turn that ended stay for the next turn of its session
  SwapCodec codec;
};

// A request comes back from CPU memory and its copy ends in `end`. If the steps continue, it misses a token in each step that begins before
// that. If the step waits instead (it already waits for `waited`), all of its `rows` requests and this one are delayed by the
// difference; the cost in tokens is the delay over the time of a step, for each of them. True: waiting costs no more. step: time of a step
// with this request; 0: not known.
inline bool waits_for_copy_in(std::int64_t rows, Span step, Span waited, Span end) {
  if (step <= Span{0}) return false;
  const Int128 missed = ceil_div(ns(end), ns(step)) * Int128{ns(step)};
  return (rows + 1) * Int128{ns(std::max(Span{0}, end - waited))} <= missed;
}

}  // namespace kvlab
