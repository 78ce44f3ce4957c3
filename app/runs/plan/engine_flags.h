#pragma once

#include <string>
#include <vector>

namespace kvlab {

// Settings of an experiment.
struct EngineFlags {
  std::vector<std::string> overrides;  // "memory.block_tokens=16", for --set
  std::vector<std::string> remarks;    // per option, in order
};

// Translates an engine's command line for `experiment` with the --set values `set`. Throws one InputError for all
// options that are unknown, refused or have a bad value, and if the scheduler is not the engine's.
// Rules in `options` of profiles/flags/ENGINE.yaml:
//   key       path in the experiment ('scheduler.X': X of the engine's scheduler). Its value is the option's; 'switch', without one
//             (--no-OPTION negates true and false); or that of 'values' ("": sets nothing), the only ones allowed unless
//             'takes_others'. Numbers may have 'suffixes' (8k, 8K, 1m), are multiplied by 'scale' and the values at paths 'times',
//             and divided by those at 'over'. 'with' sets further keys. 'ranks' {key, values} applies if parallel.dp > 1.
//   values    without key: the only allowed values, which change nothing; 'otherwise': reason for refusing others
//   ignored   reason why the option changes nothing
//   refused   reason, or what to write
// 'above_one': path of a value that must exceed 1 for the option to act. 'also': other names. A name ending in '*' is a prefix. Top-level
// 'ignored' and 'refused' map a reason to options. A refused option with an off value (0, none, false, {}) changes nothing.
EngineFlags read_engine_flags(const std::string& engine, const std::string& text, const std::string& experiment,
                              const std::vector<std::string>& set);

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
