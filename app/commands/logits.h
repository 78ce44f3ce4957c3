#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace kvlab {

// For each tensor `i.ids` (int32 or int64 [n]) writes `i.logits` (float32 [n, vocab_size]), the logits at every position.
struct LogitsCommand {
  std::string model, ids_file, output, backend = "cpu";
  std::int32_t chunk_tokens = 0;  // of the prefill; 0: the whole prompt
};
int write_logits(const LogitsCommand& command, std::ostream& out);

}  // namespace kvlab
