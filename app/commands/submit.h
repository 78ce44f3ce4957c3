#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// `kvlab submit FILE --slurm`: a sweep as a Slurm job array, one task per shard, and a job that merges the shards.
struct SubmitCommand {
  std::string file, out;
  std::vector<std::string> set, options;  // options: further ones of sbatch, "--partition=long"
  std::uint32_t shards = 0;               // 0: one per run, at most 16
  int cpus = 1;                           // of a task
  bool slurm = false, sends = false;
};

// The scripts that sbatch takes. The working folder and the program must be on a file system that the nodes share.
struct SlurmScripts {
  std::string array, merge;
};
SlurmScripts slurm_scripts(const SubmitCommand& command, const std::string& name, const std::string& working_folder,
                           const std::string& program);

// Prints the scripts, or submits them with sbatch and prints the jobs. InputError: there is no sbatch, or it fails.
int submit_sweep(SubmitCommand command, std::ostream& out);

// Adds the command, whose options write into the struct, which outlives `app`; `choose` is called where it is the chosen one.
void add_submit_command(CLI::App& app, SubmitCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
