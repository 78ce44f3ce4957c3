#pragma once

#include <string>
#include <vector>

namespace kvlab {

// An engine's command line as settings of an experiment.
struct EngineFlags {
  std::vector<std::string> overrides;  // "memory.block_tokens=16", for --set
  std::vector<std::string> remarks;    // one line per option, in order
};

// Engines with a file in profiles/flags.
std::vector<std::string> flag_engines();

// Translates an engine's options ("--max-num-seqs 128 --block-size=16", quoted as in a shell, possibly after "vllm serve MODEL") for
// `experiment` with `set`, the values of --set. Scheduler options go to its scheduler; remarks name replaced values. Throws one InputError
// for all options that are unknown, refused or have a bad value; also if the scheduler is not the engine's.
// Rules of profiles/flags/ENGINE.yaml:
//   key       path in the experiment ('scheduler.X': X of the engine's scheduler). Takes the option's value; 'switch', for an
//             option without one (--no-OPTION negates true and false); or that of 'values' ("": sets nothing), the only ones
//             allowed unless 'takes_others'. Numbers may have 'suffixes' (8k, 8K, 1m), are multiplied by 'scale' and the values
//             at paths 'times', and divided by those at 'over'. 'with' sets further keys. 'ranks' {key, values} applies if
//             parallel.dp > 1.
//   values    without key: the only allowed values, which change nothing; 'otherwise': reason for refusing others
//   ignored   reason why the option changes nothing
//   refused   reason why the option has no counterpart, or what to write
// 'above_one': path of a value that must exceed 1 for the option to act. 'also': other names. A name ending in '*' is a prefix. 'options'
// have such rules; top-level 'ignored' and 'refused' map a reason to options. A refused option with a value that turns it off (0, none,
// false, {}) changes nothing.
EngineFlags read_engine_flags(const std::string& engine, const std::string& text, const std::string& experiment,
                              const std::vector<std::string>& set);

}  // namespace kvlab
