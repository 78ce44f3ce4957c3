#include <unistd.h>

#include <filesystem>

#include "app/commands/command.h"
#include "app/compare/compare.h"
#include "app/compare/points.h"
#include "app/results/safe_files.h"
#include "app/why/why.h"
#include "base/text.h"

namespace kvlab {

namespace {

struct CompareCommand {
  std::string folder_a, folder_b;
  bool every = false;
  std::vector<std::string> where;
  std::size_t num_requests = 10;
};

void add_compare(CLI::App& app, Command& chosen) {
  CLI::App* compare = app.add_subcommand("compare", "differences between two results folders, run by run");
  auto& c = arguments_of<CompareCommand>(*compare);
  compare->add_option("A", c.folder_a, "results folder")->required()->check(offers(Offer::kResults));
  compare->add_option("B", c.folder_b, "results folder")->required()->check(offers(Offer::kResults));
  compare->add_flag("--all", c.every, "every metric instead of the main ones");
  repeated(compare->add_option("--where", c.where, "AXIS=VALUE of the runs to take, in the folders that have the axis; may be repeated"),
           Offer::kAxisValues);
  compare->add_option("--requests", c.num_requests, "requests to show that moved most; 0: none")->check(whole_number());
  choose(compare, chosen, c, [](const CompareCommand& given) {
    return compare_results(given.folder_a, given.folder_b, given.every, given.num_requests, given.where);
  });
}

struct ValidateCommand {
  std::string real, against;
  PointsCommand points;
  bool quiet = false;
};

void add_validate(CLI::App& app, Command& chosen) {
  CLI::App* validate = app.add_subcommand("validate", "compare results with a real engine's log, or simulate measured points");
  auto& c = arguments_of<ValidateCommand>(*validate);
  CLI::Option_group* measured = validate->add_option_group("measured");
  CLI::Option* const requests = measured->add_option(
      "--requests", c.real,
      "an engine's requests.jsonl, vLLM's /metrics, or a result of vllm bench serve, AIPerf or GuideLLM (docs/exchange.md)");
  CLI::Option* const points = measured->add_option("--points", c.points.file, "measured TPOT by model, GPU and load (CSV)");
  measured->require_option(1);
  CLI::Option* const against =
      validate->add_option("--against", c.against, "--requests: results folder")->excludes(points)->check(offers(Offer::kResults));
  CLI::Option* const out_folder = validate->add_option("--out", c.points.out, "--points: folder to write")->excludes(requests);
  requests->needs(against);
  points->needs(out_folder);
  validate->add_option("--profile", c.points.options.profile, "--points: 'profile' of each run, YAML in which $COLUMN is the row's value")
      ->needs(points)
      ->check(offers(Offer::kText));
  validate
      ->add_option("--shortest-frac", c.points.options.shortest_frac,
                   "--points: lengths are drawn from this share of isl and osl to all of it; default: 1, all alike")
      ->needs(points)
      ->check(CLI::Range(0.01, 1.0));
  validate->add_flag("--quiet", c.quiet, "print errors only");
  choose(validate, chosen, c, [](ValidateCommand& given, std::ostream& out, std::ostream& err) {
    if (!given.points.file.empty()) {
      given.points.quiet = given.quiet;
      given.points.shows_progress = ::isatty(STDERR_FILENO) == 1;
      return validate_points(given.points, out, err);
    }
    ResultsFolder results{std::filesystem::path(given.against)};
    validate_results(given.real, results, given.quiet ? nullptr : &out);
    name_results(given.against);
    return 0;
  });
}

void add_why(CLI::App& app, Command& chosen) {
  CLI::App* const why = app.add_subcommand("why", "why a run is slow, and what would help: tried in runs that are thrown away");
  auto& c = arguments_of<WhyCommand>(*why);
  why->add_option("folder", c.folder, "results folder")->required()->check(offers(Offer::kResults));
  why->add_option(
         "--metric", c.metric,
         "what to explain: ttft, tpot, itl, tbt or e2e (P99), a column such as ttft_p90_ms, or goodput_per_s; default: the limit of "
         "the SLO that is missed most, or what a search found")
      ->check(offers(Offer::kWords, join(why_metric_columns(), " ")));
  CLI::Option* const run =
      why->add_option("--run", c.run, "ID of a run, as in summary.csv; default: the best one that misses its SLO, else the best")
          ->check(offers(Offer::kRuns));
  why->add_flag("--all", c.every, "every run of the folder")->excludes(run);
  why->add_flag_callback(
      "--no-try", [&c] { c.tries = false; }, "only what the results say; default: runs with other settings too");
  why->add_option("--seconds", c.seconds, "time for the tries of a run; those that are left are named; default: 60")
      ->check(CLI::Range(0.0, 1e6));
  why->add_flag("--json", c.json, "as JSON");
  why->add_option("--out", c.out, "file to write; default: standard output")->check(offers(Offer::kFiles));
  choose(why, chosen, c, explain_results);
}

}  // namespace

void add_other_commands(CLI::App& app, Command& chosen) {
  add_merge_command(app, chosen);
  add_submit_command(app, chosen);
  add_trace_commands(app, chosen);
  add_help_commands(app, chosen);
  add_estimate_command(app, chosen);
  add_characterize_command(app, chosen);
  add_compare(app, chosen);
  add_pivot_command(app, chosen);
  add_why(app, chosen);
  add_validate(app, chosen);
  add_results_command(app, chosen);
  add_clean_command(app, chosen);
  add_export_command(app, chosen);
  add_reproduce_command(app, chosen);
  add_profile_commands(app, chosen);
  add_record_command(*app.get_subcommand("trace"), chosen);
  add_calibrate_command(app, chosen);
  add_logits_command(app, chosen);
  add_label_command(app, chosen);
  add_tokenize_command(app, chosen);
}

}  // namespace kvlab
