#pragma once

#include <string>
#include <vector>

namespace kvlab {

struct GivenOption {
  std::string name;  // "max-num-seqs"
  bool is_negated = false;
  std::vector<std::string> values;
  std::string text;
};

// Options in order (a positional model as "model") and environment variables.
struct EngineCommandLine {
  std::vector<GivenOption> options;
  std::vector<std::string> environment;  // "CUDA_VISIBLE_DEVICES=0"
};

// Parses options ("--max-num-seqs 128 -tp=2") or a shell line with assignments, `vllm serve MODEL`, `python -m sglang.launch_server` or a
// container's image. Drops pipes and redirections. `--NAME.KEY VALUE` is an option NAME. Throws InputError on an unclosed quote.
EngineCommandLine parse_engine_line(const std::string& text);

}  // namespace kvlab
