#pragma once

#include "base/config/param_reader.h"
#include "policies/kv/step.h"

namespace kvlab {

enum class StartPhase : std::uint8_t { kPromptEnd, kDecodeOnly, kEveryChunk };

inline StartPhase start_phase(Params& p) {
  return p.choice(
      "from", {{"prompt_end", StartPhase::kPromptEnd}, {"decode_only", StartPhase::kDecodeOnly}, {"every_chunk", StartPhase::kEveryChunk}},
      StartPhase::kPromptEnd, "first cut: when the prompt is complete, in decode, or after each prefill chunk");
}

inline bool in_phase(StartPhase phase, const SeqStep& seq) {
  return seq.decoding() || phase == StartPhase::kEveryChunk || (phase == StartPhase::kPromptEnd && seq.completes_prompt());
}

}  // namespace kvlab
