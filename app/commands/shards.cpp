#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/runs/sweep/chosen_runs.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/sweep.h"
#include "base/error.h"
#include "base/json_text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct MergeCommand {
  std::string target;               // experiment file, or the whole's results folder
  std::vector<std::string> shards;  // results folders; empty: those next to the whole's
  std::vector<std::string> set;     // as given to the shards
  SweepOptions sweep;
};

constexpr const char* kAdvice = ": 'kvlab run FILE.yaml --shard 1/4' makes the first of four shards";

struct ShardOrigin {
  std::string file;
  std::vector<std::string> set;
};

ShardOrigin origin_of(const std::vector<fs::path>& shards) {
  for (const fs::path& shard : shards) {
    const auto manifest = read_json_object<nlohmann::json>(shard / "manifest.json");
    if (!manifest.contains("file") || !manifest["file"].is_string()) continue;  // stopped before its first run was done
    return {manifest["file"].get<std::string>(), manifest.value("set", std::vector<std::string>{})};
  }
  throw InputError(shards.front().parent_path().string() + ": no shard has a complete run");
}

int merge_shards(MergeCommand c, std::ostream& out, std::ostream& err) {
  std::error_code error;
  c.sweep.shards.assign(c.shards.begin(), c.shards.end());
  const bool is_folder = !fs::is_regular_file(c.target, error) && !shard_folders(c.target).empty();
  if (is_folder) {
    if (!c.sweep.out.empty()) throw InputError("--out goes with an experiment's file; '" + c.target + "' is a results folder");
    c.sweep.out = c.target;
    const ShardOrigin origin = origin_of(shard_folders(c.target));
    c.target = origin.file;
    if (c.set.empty()) c.set = origin.set;
  } else if (fs::is_directory(c.target, error)) {
    throw InputError(c.target + ": there is no folder '" + shard_folder(c.target, {}).parent_path().string() + "' of shards" + kAdvice);
  }
  Experiment experiment = load_experiment(c.target, c.set);
  c.sweep.out = results_folder(experiment, c.sweep.out).string();
  if (c.sweep.shards.empty()) c.sweep.shards = shard_folders(c.sweep.out);
  if (c.sweep.shards.empty()) throw InputError(shard_folder(c.sweep.out, {}).parent_path().string() + ": there are no shards" + kAdvice);
  return run_sweep(std::move(experiment), c.sweep, out, err);
}

std::string directives(const SubmitCommand& c, const std::string& job, const std::string& log) {
  std::string text = fmt::format("#!/bin/bash\n#SBATCH --job-name={}\n#SBATCH --output={}\n", job, log);
  for (const std::string& option : c.options) text += "#SBATCH " + option + "\n";
  return text;
}

std::string arguments_text(const SubmitCommand& c) {
  std::string text = shell_word(c.file);
  for (const std::string& one : c.set) text += " --set " + shell_word(one);
  return text + " --out " + shell_word(c.out);
}

// Throws InputError if `command` fails.
std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw InputError("'" + command + "' cannot be started");
  std::string text;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  const int status = ::pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw InputError("'" + command + "' failed: its message is above");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string send(const std::string& script, const std::string& options) {
  std::string name = (fs::temp_directory_path() / "kvlab-submit-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  const bool is_written = file >= 0 && ::write(file, script.data(), script.size()) == static_cast<ssize_t>(script.size());
  if (file >= 0) ::close(file);
  if (!is_written) throw InputError(name + ": cannot be written");
  const std::string job = output_of("sbatch --parsable " + options + shell_word(name));
  fs::remove(name);
  return job.substr(0, job.find(';'));  // "123;cluster"
}

void require_sbatch() {
  if (std::system("command -v sbatch >/dev/null 2>&1") != 0)
    throw InputError("there is no sbatch here: without --send the scripts are printed, for 'sbatch' on the cluster's login node");
}

std::uint32_t default_shards(const SubmitCommand& c, const Experiment& experiment) {
  constexpr std::size_t kMost = 16;
  return c.shards > 0 ? c.shards : static_cast<std::uint32_t>(std::min(kMost, experiment.runs.size()));
}

}  // namespace

void add_merge_command(CLI::App& app, Command& chosen) {
  CLI::App* const merge = app.add_subcommand("merge", "join the results of shards ('run --shard') as if one program had done all runs");
  auto& c = arguments_of<MergeCommand>(*merge);
  merge->add_option("target", c.target, "the experiment's file, or the results folder of the whole")
      ->required()
      ->check(offers(Offer::kNames, "experiments"))
      ->check(offers(Offer::kYamlFiles))
      ->check(offers(Offer::kResults));
  merge->add_option("shards", c.shards, "results folders of shards; default: those in RESULTS.shards")->check(offers(Offer::kResults));
  repeated(merge->add_option("--set", c.set, "as given to the shards; may be repeated"), Offer::kSettings);
  merge->add_option("--out", c.sweep.out, "results folder of the whole; default: results/NAME")->check(offers(Offer::kResults));
  merge->add_flag("--quiet", c.sweep.quiet, "print errors only");
  choose(merge, chosen, c, merge_shards);
}

SlurmScripts slurm_scripts(const SubmitCommand& c, const std::string& name, const std::string& working_folder, const std::string& program) {
  SlurmScripts scripts;
  const std::string job = "kvlab-" + name, in_folder = fmt::format("cd {} || exit 1\n", shell_word(working_folder));
  scripts.array = directives(c, job, job + "-%A_%a.log") +
                  fmt::format("#SBATCH --array=1-{}\n#SBATCH --cpus-per-task={}\n#SBATCH --requeue\n", c.shards, c.cpus) + in_folder +
                  fmt::format("exec {} run {} --shard \"$SLURM_ARRAY_TASK_ID/{}\" --jobs {}\n", shell_word(program), arguments_text(c),
                              c.shards, c.cpus);
  scripts.merge = directives(c, job + "-merge", job + "-merge-%j.log") + in_folder +
                  fmt::format("exec {} merge {}\n", shell_word(program), arguments_text(c));
  return scripts;
}

namespace {

// Prints the scripts, or submits them. Throws InputError if sbatch is missing or fails.
void submit_sweep(SubmitCommand c, std::ostream& out) {
  Experiment experiment = load_experiment(c.file, c.set);
  drop_idle_seeds(experiment);
  c.file = experiment.file;
  c.out = results_folder(experiment, c.out).string();
  c.shards = default_shards(c, experiment);
  const SlurmScripts scripts = slurm_scripts(c, experiment.name, fs::current_path().string(), fs::read_symlink("/proc/self/exe").string());
  if (!c.sends) {
    out << scripts.array << "\n# When the array has ended, by a second script (sbatch --dependency=afterany:JOB):\n"
        << "# " << scripts.merge.substr(scripts.merge.rfind("exec ") + 5);
    return;
  }
  require_sbatch();
  const std::string array = send(scripts.array, "");
  out << fmt::format("job {}: {} runs in {} shards\n", array, experiment.runs.size(), c.shards) << std::flush;
  const std::string merge = send(scripts.merge, fmt::format("--dependency=afterany:{} ", array));
  out << fmt::format("job {}: merges them into {}\n", merge, c.out);
}

}  // namespace

void add_submit_command(CLI::App& app, Command& chosen) {
  CLI::App* const submit = app.add_subcommand("submit", "print or submit a sweep as a job array, a shard for each task");
  auto& c = arguments_of<SubmitCommand>(*submit);
  submit->add_option("file", c.file, "experiment (YAML)")
      ->required()
      ->check(offers(Offer::kNames, "experiments"))
      ->check(offers(Offer::kYamlFiles));
  submit->add_flag("--slurm", c.slurm, "for Slurm: a script for sbatch")->required();
  submit->add_flag("--send", c.sends, "submit the scripts instead of printing them, and a job that merges the shards afterwards");
  submit->add_option("--shards", c.shards, "tasks of the array; default: one per run, at most 16")->check(CLI::Range(1, 100'000));
  submit->add_option("--cpus", c.cpus, "of a task, which does so many runs at a time; default: 1")->check(CLI::Range(1, 4096));
  repeated(submit->add_option("--sbatch", c.options, "a further option of sbatch, --sbatch=--partition=long; may be repeated"),
           Offer::kText);
  repeated(submit->add_option("--set", c.set, "key.key=value in place of what the file says; may be repeated"), Offer::kSettings);
  submit->add_option("--out", c.out, "results folder of the whole; default: results/NAME")->check(offers(Offer::kResults));
  choose(submit, chosen, c, submit_sweep);
}

}  // namespace kvlab
