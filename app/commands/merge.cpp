#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/offers.h"
#include "app/commands/other_commands.h"
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
  merge->add_option("--set", c.set, "as given to the shards; may be repeated")->allow_extra_args(false)->check(offers(Offer::kSettings));
  merge->add_option("--out", c.sweep.out, "results folder of the whole; default: results/NAME")->check(offers(Offer::kResults));
  merge->add_flag("--quiet", c.sweep.quiet, "print errors only");
  choose(merge, chosen, c, merge_shards);
}

}  // namespace kvlab
