#include <unistd.h>

#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/runs/plan/engine_flags.h"
#include "app/runs/sweep/sweep.h"

namespace kvlab {

namespace {

struct RunCommand {
  std::string file, model, shard, fast_forward = "on", vllm_args, sglang_args;
  std::vector<std::string> set;
  SweepOptions sweep;
};

void add_engine_flags(const std::string& engine, const std::string& text, RunCommand& c, std::ostream& out) {
  if (text.empty()) return;
  if (text.find_first_not_of(" \t\r\n\\") == std::string::npos) {
    if (!c.sweep.quiet) out << "--" << engine << "-args is empty: it sets nothing\n";
    return;
  }
  const EngineFlags flags = read_engine_flags(engine, text, c.file, c.set);
  c.set.insert(c.set.end(), flags.overrides.begin(), flags.overrides.end());
  if (c.sweep.quiet) return;
  for (const std::string& remark : flags.remarks) out << remark << "\n";
}

int run_experiment(RunCommand c, std::ostream& out, std::ostream& err) {
  c.sweep.fast_forward = c.fast_forward == "on";
  if (!c.model.empty()) c.set.push_back("model=" + c.model);
  add_engine_flags("vllm", c.vllm_args, c, out);
  add_engine_flags("sglang", c.sglang_args, c, out);
  c.sweep.shows_progress = ::isatty(STDERR_FILENO) == 1;
  if (!c.shard.empty()) c.sweep.shard = parse_shard(c.shard);
  Experiment experiment = load_experiment(c.file, c.set);
  return run_sweep(std::move(experiment), c.sweep, out, err);
}

}  // namespace

void add_run_command(CLI::App& app, Command& chosen) {
  CLI::App* const run = app.add_subcommand("run", "simulate an experiment and write results/NAME/");
  auto& c = arguments_of<RunCommand>(*run);
  run->add_option("file", c.file, "experiment (YAML)")
      ->required()
      ->check(offers(Offer::kNames, "experiments"))
      ->check(offers(Offer::kYamlFiles));
  repeated(run->add_option("--set", c.set, "key.key=value in place of what the file says; may be repeated"), Offer::kSettings);
  run->add_option("--model", c.model, "folder of the model to run, in place of what the file says")->check(offers(Offer::kFolders));
  CLI::Option* const vllm = run->add_option("--vllm-args", c.vllm_args, "options of 'vllm serve' in place of what the file says, in quotes")
                                ->check(offers(Offer::kText));
  run->add_option("--sglang-args", c.sglang_args, "the same of SGLang's server")->excludes(vllm)->check(offers(Offer::kText));
  run->add_option("--jobs", c.sweep.jobs, "runs at a time; default: the number of cores")->check(CLI::Range(1, 4096));
  CLI::Option* const out_folder =
      run->add_option("--out", c.sweep.out, "results folder; default: results/NAME")->check(offers(Offer::kResults));
  run->add_flag("--join", c.sweep.join, "keep this experiment's runs in --out beside those of the experiment that it belongs to")
      ->needs(out_folder);
  run->add_option("--shard", c.shard, "I/N: only the part I of N of the runs, into RESULTS.shards/I-of-N; 'kvlab merge' joins the parts")
      ->check(offers(Offer::kText));
  run->add_option("--fast-forward", c.fast_forward, "off: simulate every step; results are the same, byte for byte")
      ->check(CLI::IsMember({"on", "off"}));
  run->add_flag("--quiet", c.sweep.quiet, "print errors only");
  run->add_flag("--force", c.sweep.force, "do runs again whose inputs have not changed");
  choose(run, chosen, c, run_experiment);
}

}  // namespace kvlab
