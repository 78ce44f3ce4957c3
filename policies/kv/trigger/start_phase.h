#pragma once

#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// The first cut of a trigger that works in decode.
enum class StartPhase : std::uint8_t { kPromptEnd, kDecodeOnly, kEveryChunk };

inline StartPhase start_phase(Params& p) {
  return static_cast<StartPhase>(p.choice("from", {"prompt_end", "decode_only", "every_chunk"}, 0,
                                          "first cut: when the prompt is complete, in decode, or after each prefill chunk"));
}

// True: a step of this sequence is in the phase.
inline bool in_phase(StartPhase phase, const SeqStep& seq) {
  return seq.decoding() || phase == StartPhase::kEveryChunk || (phase == StartPhase::kPromptEnd && seq.completes_prompt());
}

}  // namespace kvlab
