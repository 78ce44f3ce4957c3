#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/config.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

// Generated English, by seed and tokenizer.

// About `tokens` tokens; `index` selects the text.
std::vector<std::int32_t> made_up_text(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index,
                                       std::int32_t tokens);

struct NeedleProbe {
  std::vector<std::int32_t> ids;                 // text with "The code for WORD is DIGITS.", then the question
  std::pair<std::int32_t, std::int32_t> needle;  // [begin, end) of the digits
};

// About `tokens` tokens; depth in [0, 1].
NeedleProbe needle_probe(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index, std::int32_t tokens,
                         double depth);

std::vector<std::int32_t> repeated_block(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index,
                                         std::int32_t block_tokens, std::int32_t repeats);

// Throws InputError if `what` is too long.
void require_context(const ModelConfig& model, std::size_t tokens, const char* what);

}  // namespace kvlab
