#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/config.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

// Prompts that label passes run. They are made up from the seed, in plain English, and are the same for the same tokenizer.

// About `tokens` tokens of short sentences; `index` names the text.
std::vector<std::int32_t> made_up_text(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index,
                                       std::int32_t tokens);

struct NeedleProbe {
  std::vector<std::int32_t> ids;                 // running text with "The code for WORD is DIGITS." in it, and the question at its end
  std::pair<std::int32_t, std::int32_t> needle;  // [begin, end) of the digits' tokens
};

// A prompt of about `tokens` tokens with the needle at the share `depth` of the text.
NeedleProbe needle_probe(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index, std::int32_t tokens,
                         double depth);

// `repeats` copies of one block of `block_tokens` tokens, drawn from the ids that made-up text has.
std::vector<std::int32_t> repeated_block(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index,
                                         std::int32_t block_tokens, std::int32_t repeats);

// InputError: `what` has more tokens than the model's context.
void require_context(const ModelConfig& model, std::size_t tokens, const char* what);

}  // namespace kvlab
