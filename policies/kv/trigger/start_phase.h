#pragma once

#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// When a trigger that works in decode begins.
enum class StartPhase : std::uint8_t { kPromptEnd, kDecodeOnly, kEveryChunk };

inline StartPhase start_phase(Params& p) {
  return static_cast<StartPhase>(p.choice("from", {"prompt_end", "decode_only", "every_chunk"}, 0,
                                          "first cut: when the prompt is complete, in decode, or after each prefill chunk"));
}

// Whether a step of this sequence lies in the phase.
inline bool in_phase(StartPhase phase, const SeqStep& seq) {
  return seq.decoding() || phase == StartPhase::kEveryChunk || (phase == StartPhase::kPromptEnd && seq.completes_prompt());
}

}  // namespace kvlab
