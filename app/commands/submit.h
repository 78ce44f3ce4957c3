#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// A Slurm job array, a task per shard, and a job that merges them.
struct SubmitCommand {
  std::string file, out;
  std::vector<std::string> set, options;  // options: of sbatch, "--partition=long"
  std::uint32_t shards = 0;               // 0: one per run, at most 16
  int cpus = 1;
  bool slurm = false, sends = false;
};

// Nodes must share the working folder and the program.
struct SlurmScripts {
  std::string array, merge;
};
SlurmScripts slurm_scripts(const SubmitCommand& command, const std::string& name, const std::string& working_folder,
                           const std::string& program);

// Prints the scripts, or submits them. Throws InputError if sbatch is missing or fails.
int submit_sweep(SubmitCommand command, std::ostream& out);

}  // namespace kvlab
