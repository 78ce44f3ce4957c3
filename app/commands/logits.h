#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace kvlab {

// `kvlab logits`: for each tensor `i.ids` (int32 or int64 [n]) of the file, writes the model's logits at every position as `i.logits`
// (float32 [n, vocab_size]).
struct LogitsCommand {
  std::string model, ids_file, output, backend = "cpu";
  std::int32_t chunk_tokens = 0;  // of the prefill; 0: each prompt in one piece
};
int write_logits(const LogitsCommand& command, std::ostream& out);

}  // namespace kvlab
