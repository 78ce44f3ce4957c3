#include "app/commands/other_commands.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <ostream>

#include "app/commands/clean.h"
#include "app/commands/engine_commands.h"
#include "app/commands/export.h"
#include "app/commands/fetch.h"
#include "app/commands/merge.h"
#include "app/commands/offers.h"
#include "app/commands/pivot.h"
#include "app/commands/reproduce.h"
#include "app/commands/results.h"
#include "app/commands/submit.h"
#include "app/commands/trace.h"
#include "app/commands/why.h"
#include "app/compare/compare.h"
#include "app/compare/points.h"
#include "app/compare/validate.h"
#include "app/help_commands.h"
#include "app/machine_options.h"
#include "app/results/text_file.h"
#include "base/text.h"
#include "sim/cost/profile_format.h"
#include "traces/write_trace.h"

namespace kvlab {

namespace {

struct Arguments {
  std::string real, against, folder_a, folder_b;
  std::vector<std::string> where;
  TraceCommand trace;
  FetchCommand fetch;
  ProfileCommand profile;
  CleanCommand clean;
  PointsCommand points;
  EstimateCommand estimate;
  CharacterizeCommand characterize;
  ReproduceCommand reproduce;
  MergeCommand merge;
  PivotCommand pivot;
  WhyCommand why;
  SubmitCommand submit;
  HelpArguments help;
  ExportCommand exported;
  ResultsCommand results;
  EngineArguments engine;
  std::size_t num_requests = 10;
  bool every = false, quiet = false;
};

void add_trace_fetch(CLI::App& trace, Arguments& a, Command& chosen) {
  CLI::App* fetch = trace.add_subcommand("fetch", "download a public trace; without a name, list them");
  fetch->add_option("name", a.fetch.name, "of the trace")->check(offers(Offer::kNames, "public_traces"));
  fetch->add_option("--list", a.fetch.list, "another list than traces/public_traces.yaml; traces go to public/ beside it");
  fetch->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return fetch_trace(a.fetch, out); }; });
}

void add_trace(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* trace = app.add_subcommand("trace", "inspect, convert, generate or fetch a request trace; record an attention trace");
  trace->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool writes, int (*act)(const TraceCommand&, std::ostream&)) {
    CLI::App* one = trace->add_subcommand(name, help);
    one->add_option("file", a.trace.input, "trace, or experiment (YAML) whose 'trace' is meant")->required();
    if (writes) one->add_option("output", a.trace.output, "file to write: .csv or .jsonl, also packed as .gz or .zst")->required();
    if (writes)
      one->add_option("--to", a.trace.output_format,
                      "format to write: " + join(trace_writer_names(), ", ") + "; default: by the file's name")
          ->check(offers(Offer::kWords, join(trace_writer_names(), " ")));
    one->add_option("--set", a.trace.set, "key=value of the 'trace' mapping, such as block_size=512; may be repeated")
        ->allow_extra_args(false)
        ->check(offers(Offer::kSettings, "trace"));
    one->add_option("--seed", a.trace.seed, "of random choices")->check(seed_range());
    one->add_option("--tokenizer", a.trace.tokenizer, "folder with tokenizer.json that counts the tokens of texts (sharegpt)")
        ->check(offers(Offer::kFolders));
    one->callback([&a, &chosen, act] { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(a.trace, out); }; });
  };
  add("inspect", "print rates, lengths and sharing of a trace", false, inspect_trace);
  add("convert", "write a trace in another format", true, convert_trace);
  add("generate", "write the trace that an experiment's 'trace: {generate: ...}' describes", true, convert_trace);
  add_trace_fetch(*trace, a, chosen);
}

void add_profile(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* profile = app.add_subcommand("profile", "check or convert measured kernel tables");
  profile->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool writes, int (*act)(const ProfileCommand&, std::ostream&)) {
    CLI::App* one = profile->add_subcommand(name, help);
    one->add_option("folder", a.profile.folder, "profile")->required()->check(offers(Offer::kFolders));
    if (writes) one->add_option("output", a.profile.output, "folder to write, in our own format")->required();
    const std::vector<std::string> formats = profile_format_names();
    one->add_option("--format", a.profile.format, "of the folder: " + join(formats, ", ") + "; default: by its files")
        ->check(CLI::IsMember(formats));
    if (!writes)
      one->add_option("--model", a.profile.model, "model measured; default: as the profile says")
          ->check(offers(Offer::kNames, "models"))
          ->check(offers(Offer::kFiles));
    if (!writes)
      one->add_option("--hardware", a.profile.hardware, "GPU measured; default: as the profile says")
          ->check(offers(Offer::kNames, "hardware"));
    one->add_option("--tp", a.profile.tp, "tensor-parallel degree; default: every one there is")->check(CLI::Range(1, 1024));
    one->callback([&a, &chosen, act] { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(a.profile, out); }; });
  };
  add("lint", "compare every entry with the GPU's datasheet", false, lint_profile_folder);
  add("convert", "write a bundle or Vidur CSVs in our own format; with --format aisimulate the tables of a Python package", true,
      convert_profile_folder);
}

void add_compare(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* compare = app.add_subcommand("compare", "differences between two results folders, run by run");
  compare->add_option("A", a.folder_a, "results folder")->required()->check(offers(Offer::kResults));
  compare->add_option("B", a.folder_b, "results folder")->required()->check(offers(Offer::kResults));
  compare->add_flag("--all", a.every, "every metric instead of the main ones");
  compare->add_option("--where", a.where, "AXIS=VALUE of the runs to take, in the folders that have the axis; may be repeated")
      ->allow_extra_args(false)
      ->check(offers(Offer::kAxisValues));
  compare->add_option("--requests", a.num_requests, "requests to show that moved most; 0: none")->check(whole_number());
  compare->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) {
      out << compare_results(a.folder_a, a.folder_b, a.every, a.num_requests, a.where);
      return 0;
    };
  });
}

void add_validate(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* validate = app.add_subcommand("validate", "compare results with a real engine's log, or simulate measured points");
  CLI::Option_group* measured = validate->add_option_group("measured");
  CLI::Option* const requests = measured->add_option(
      "--requests", a.real,
      "an engine's requests.jsonl, vLLM's /metrics, or a result of vllm bench serve, AIPerf or GuideLLM (docs/exchange.md)");
  CLI::Option* const points = measured->add_option("--points", a.points.file, "measured TPOT by model, GPU and load (CSV)");
  measured->require_option(1);
  CLI::Option* const against =
      validate->add_option("--against", a.against, "--requests: results folder")->excludes(points)->check(offers(Offer::kResults));
  CLI::Option* const out_folder = validate->add_option("--out", a.points.out, "--points: folder to write")->excludes(requests);
  requests->needs(against);
  points->needs(out_folder);
  validate->add_option("--profile", a.points.options.profile, "--points: 'profile' of each run, YAML in which $COLUMN is the row's value")
      ->needs(points)
      ->check(offers(Offer::kText));
  validate
      ->add_option("--shortest-frac", a.points.options.shortest_frac,
                   "--points: lengths are drawn from this share of isl and osl to all of it; default: 1, all alike")
      ->needs(points)
      ->check(CLI::Range(0.01, 1.0));
  validate->add_flag("--quiet", a.quiet, "print errors only");
  validate->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream& err) {
      if (!a.points.file.empty()) {
        a.points.quiet = a.quiet;
        a.points.shows_progress = ::isatty(STDERR_FILENO) == 1;
        return validate_points(a.points, out, err);
      }
      ResultsFolder results{std::filesystem::path(a.against)};
      validate_results(a.real, results, a.quiet ? nullptr : &out);
      name_results(a.against);
      return 0;
    };
  });
}

bool can_ask() { return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1; }

void add_results(CLI::App& app, Arguments& a, Command& chosen) {
  add_results_command(app, a.results, [&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) { return a.results.can_ask = can_ask(), show_results(a.results, std::cin, out); };
  });
  add_clean_command(app, a.clean, [&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) { return a.clean.can_ask = can_ask(), clean_results(a.clean, std::cin, out); };
  });
}

void add_estimates(CLI::App& app, Arguments& a, Command& chosen) {
  add_estimate_command(app, a.estimate)->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) { return print_estimate(a.estimate, out); };
  });
  add_characterize_command(app, a.characterize)->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) { return print_characterization(a.characterize, out); };
  });
}

void add_reproduce(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("reproduce", "run published claims and print their figures beside ours");
  one->add_option("name", a.reproduce.names, "claims, as `kvlab list claims` prints them, or files")
      ->check(offers(Offer::kNames, "claims"))
      ->check(offers(Offer::kYamlFiles));
  one->add_flag("--all", a.reproduce.every, "every claim");
  one->add_flag("--json", a.reproduce.json, "as JSON: a list of {name, system, published, ours, verdict}");
  one->add_option("--out", a.reproduce.out, "folder that gets the table: claims.md, claims.csv and their figure");
  one->add_option("--jobs", a.reproduce.runs.jobs, "runs at a time; default: the number of cores")->check(CLI::Range(1, 4096));
  one->add_option("--runs", a.reproduce.runs.folder, "folder of the runs; default: results/claims")->check(offers(Offer::kFolders));
  one->add_flag("--force", a.reproduce.runs.force, "do runs again whose inputs have not changed");
  one->add_flag("--quiet", a.reproduce.quiet, "no progress");
  one->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream& err) { return reproduce_claims(a.reproduce, out, err); }; });
}

}  // namespace

void add_other_commands(CLI::App& app, Command& chosen) {
  const auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  app.callback([arguments] {});  // keeps them as long as `app`
  add_merge_command(app, a.merge,
                    [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream& err) { return merge_shards(a.merge, out, err); }; });
  add_submit_command(app, a.submit,
                     [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return submit_sweep(a.submit, out); }; });
  add_trace(app, a, chosen);
  add_help_commands(app, a.help, [&chosen](auto act) { chosen = [act](std::ostream& out, std::ostream&) { return act(out); }; });
  add_estimates(app, a, chosen);
  add_compare(app, a, chosen);
  add_pivot_command(app, a.pivot, [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return print_pivot(a.pivot, out); }; });
  add_why_command(app, a.why, [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return explain_results(a.why, out); }; });
  add_validate(app, a, chosen);
  add_results(app, a, chosen);
  add_export_command(app, a.exported,
                     [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return export_results(a.exported, out); }; });
  add_reproduce(app, a, chosen);
  add_profile(app, a, chosen);
  add_engine_commands(app, a.engine, chosen);
}

}  // namespace kvlab
