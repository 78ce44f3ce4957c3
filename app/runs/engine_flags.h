#pragma once

#include <string>
#include <vector>

namespace kvlab {

// An engine's command line in the words of an experiment.
struct EngineFlags {
  std::vector<std::string> overrides;  // "memory.block_tokens=16", as --set takes them
  std::vector<std::string> remarks;    // one line on each option, in the order given
};

// The engines whose options are known: files of profiles/flags.
std::vector<std::string> flag_engines();

// Translates options of an engine ("--max-num-seqs 128 --block-size=16", quoted as in a shell; "vllm serve MODEL" may come first).
// experiment: the file they are for, with `set`, the values of --set: its scheduler gets the scheduler's options, and remarks name the
// values that are replaced. InputError: an option that is unknown, has no counterpart, or has a value that it does not take; a scheduler
// other than the engine's.
//
// A rule of profiles/flags/ENGINE.yaml has one of these:
//   key       path in the experiment; 'scheduler.X' is X of the engine's scheduler. The value is the option's,
//             or 'switch' for an option without one (--no-OPTION sets the opposite of true and false), or that of 'values'
//             ("": nothing is set), which exclude others unless 'takes_others' is true. Numbers may have 'suffixes' (8k, 8K, 1m),
//             and are multiplied by 'scale' and by the values at the paths 'times', and divided by those at 'over'.
//             'with' sets further keys.
//   values    without key: the only values that are taken, as they change nothing; 'otherwise' says why
//   ignored   the option changes nothing: why
//   refused   the option would change the result and has no counterpart: why, or what to write
// 'also' lists other names of the option.
EngineFlags read_engine_flags(const std::string& engine, const std::string& text, const std::string& experiment,
                              const std::vector<std::string>& set);

}  // namespace kvlab
