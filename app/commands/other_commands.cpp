#include "app/commands/other_commands.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <ostream>

#include "app/commands/calibrate.h"
#include "app/commands/characterize.h"
#include "app/commands/clean.h"
#include "app/commands/command.h"
#include "app/commands/export.h"
#include "app/commands/fetch.h"
#include "app/commands/label.h"
#include "app/commands/logits.h"
#include "app/commands/merge.h"
#include "app/commands/offers.h"
#include "app/commands/pivot.h"
#include "app/commands/record.h"
#include "app/commands/reproduce.h"
#include "app/commands/results.h"
#include "app/commands/submit.h"
#include "app/commands/tokenize.h"
#include "app/commands/trace.h"
#include "app/compare/compare.h"
#include "app/compare/points.h"
#include "app/compare/validate.h"
#include "app/help_commands.h"
#include "app/results/text_file.h"
#include "app/why/why.h"
#include "app/why/why_metric.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "engine/model/record.h"
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
  RecordCommand record;
  LogitsCommand logits;
  LabelCommand label;
  CalibrateCommand calibrate;
  TokenizeCommand tokenize;
  std::size_t num_requests = 10;
  bool every = false, quiet = false;
};

void add_trace_fetch(CLI::App& trace, Arguments& a, Command& chosen) {
  CLI::App* fetch = trace.add_subcommand("fetch", "download a public trace; without a name, list them");
  fetch->add_option("name", a.fetch.name, "of the trace")->check(offers(Offer::kNames, "public_traces"));
  fetch->add_option("--list", a.fetch.list, "another list than traces/public_traces.yaml; traces go to public/ beside it");
  choose(fetch, chosen, a.fetch, fetch_trace);
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
    choose(one, chosen, a.trace, act);
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
    choose(one, chosen, a.profile, act);
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
  choose(compare, chosen, a, [](const Arguments& given, std::ostream& out) {
    out << compare_results(given.folder_a, given.folder_b, given.every, given.num_requests, given.where);
    return 0;
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
  choose(validate, chosen, a, [](Arguments& given, std::ostream& out, std::ostream& err) {
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

bool can_ask() { return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1; }

void add_results(CLI::App& app, Arguments& a, Command& chosen) {
  choose(add_results_command(app, a.results), chosen, a.results, [](ResultsCommand& c, std::ostream& out) {
    c.can_ask = can_ask();
    return show_results(c, std::cin, out);
  });
  choose(add_clean_command(app, a.clean), chosen, a.clean, [](CleanCommand& c, std::ostream& out) {
    c.can_ask = can_ask();
    return clean_results(c, std::cin, out);
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
  choose(one, chosen, a.reproduce, reproduce_claims);
}

template <class OfModel>
OfModel with_weights(OfModel command) {
  command.model = weights_folder(command.model);
  return command;
}

void add_trace_record(CLI::App& trace, Arguments& a, Command& chosen) {
  CLI::App* record = trace.add_subcommand("record", "run a model on a prompt and record its attention (safetensors)");
  record->add_option("--model", a.record.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  CLI::Option_group* input = record->add_option_group("prompt");
  input->add_option("--ids", a.record.ids_file, "JSON list of token ids, or {ids, continuation, task, needles, question_begin}");
  input->add_option("--text", a.record.text_file,
                    "text, for the model's tokenizer; of a byte-level model the bytes are the tokens, after <s>");
  input->require_option(1);
  record->add_option("--out", a.record.output, "file to write")->required();
  record->add_option("--prompt-tokens", a.record.prompt_tokens, "number of tokens of the input to take; default: all")
      ->check(CLI::Range(1, 1 << 28));
  record->add_option("--decode-tokens", a.record.decode_tokens, "tokens to decode greedily after them")->check(CLI::Range(0, 1 << 28));
  record->add_option("--chunk-tokens", a.record.chunk_tokens, "tokens of a prefill chunk; default: in one piece")
      ->check(CLI::Range(1, 1 << 28));
  record->add_flag("--pre-rope", a.record.pre_rope, "also queries and keys before RoPE");
  record->add_flag("--hidden", a.record.hidden, "also the inputs of the attention layers");
  record->add_flag("--w-o", a.record.w_o, "also the output projections");
  record->add_flag("--w-q", a.record.w_q, "also the projections to queries");
  record->add_option("--pass", a.record.passes, "also an extra pass: " + join(extra_pass_names(), ", ") + "; may be repeated")
      ->allow_extra_args(false)
      ->check(offers(Offer::kWords, join(extra_pass_names(), " ")));
  record->add_option("--kv-policy", a.record.kv_policy, "recipe that acts on the cache meanwhile: what is recorded is what it left")
      ->check(offers(Offer::kNames, "recipes"));
  record->add_option("--budget-tokens", a.record.budget_tokens, "of the recipe; default: as its file says")->check(CLI::Range(1, 1 << 28));
  record->add_option("--backend", a.record.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  record->add_option("--dtype", a.record.dtype, "of the floats in the file; default: f16")->check(CLI::IsMember({"f16", "f32"}));
  choose(record, chosen, a.record, [](const RecordCommand& c, std::ostream& out) { return record_trace(with_weights(c), out); });
}

void add_logits(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* logits = app.add_subcommand("logits", "run a model and write its logits");
  logits->add_option("--model", a.logits.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  logits->add_option("--ids", a.logits.ids_file, "safetensors with token ids '0.ids', '1.ids', ...")->required();
  logits->add_option("--out", a.logits.output, "safetensors to write: '0.logits', '1.logits', ..., one row for each token")->required();
  logits->add_option("--chunk-tokens", a.logits.chunk_tokens, "tokens of a prefill chunk; default: in one piece")
      ->check(CLI::Range(1, 1 << 28));
  logits->add_option("--backend", a.logits.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  choose(logits, chosen, a.logits, [](const LogitsCommand& c, std::ostream& out) { return write_logits(with_weights(c), out); });
}

void add_calibrate(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("calibrate", "measure this machine's kernels and write a profile that simulations can use");
  CLI::Option_group* device = one->add_option_group("device");
  device->add_flag("--cpu", a.calibrate.cpu, "the CPU, with the CPU's kernels");
  device->add_option("--gpu", a.calibrate.gpu, "the GPU of this number; needs a build with CUDA");
  device->require_option(1);
  one->add_option("--minutes", a.calibrate.minutes, "how long to measure; default: 10");
  one->add_option("--model", a.calibrate.model, "a name in profiles/models or a config.json; default: llama-3.1-8b, with --cpu the probe")
      ->check(offers(Offer::kNames, "models"))
      ->check(offers(Offer::kFiles));
  one->add_option("--hardware", a.calibrate.hardware, "datasheet to check against: a name in profiles/hardware; default: by the GPU's name")
      ->check(offers(Offer::kNames, "hardware"));
  one->add_option("--out", a.calibrate.out,
                  "folder to write; default: profiles/NAME. A folder of the same device, model and seed is continued")
      ->check(offers(Offer::kFolders));
  one->add_option("--seed", a.calibrate.seed, "of the points that are held out to state the error; default: 1")->check(seed_range());
  one->add_option(
         "--kv-policy", a.calibrate.kv_policies,
         "recipes whose operations are timed too, as the engine calls them; all: a few recipes that call every operation. Operations "
         "without a table are priced by the roofline")
      ->check(offers(Offer::kNames, "recipes"));
  choose(one, chosen, a.calibrate, calibrate_device);
}

void add_tokenize(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("tokenize", "print a text's token ids as a model's tokenizer.json gives them, or the text of ids");
  one->add_option("--model", a.tokenize.model, "folder with tokenizer.json")->required()->check(offers(Offer::kFolders));
  CLI::Option_group* input = one->add_option_group("input");
  input->add_option("--text", a.tokenize.text_file, "text to tokenize; -: standard input");
  input->add_option("--ids", a.tokenize.ids_file, "JSON list of ids whose text to print; -: standard input");
  input->require_option(1);
  one->add_flag("--tokens", a.tokenize.shows_tokens, "--text: print one id and its token a line")->excludes("--ids");
  one->add_flag("--no-special", a.tokenize.without_special, "--text: without what the tokenizer adds (<s>); --ids: without special tokens");
  choose(one, chosen, a.tokenize, [](const TokenizeCommand& c, std::ostream& out) { return tokenize(with_weights(c), out); });
}

void add_why(CLI::App& app, WhyCommand& c, Command& chosen) {
  CLI::App* const why = app.add_subcommand("why", "why a run is slow, and what would help: tried in runs that are thrown away");
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
  const auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  app.callback([arguments] {});  // keeps them as long as `app`
  choose(add_merge_command(app, a.merge), chosen, a.merge, merge_shards);
  choose(add_submit_command(app, a.submit), chosen, a.submit, submit_sweep);
  add_trace(app, a, chosen);
  add_help_commands(app, a.help, chosen);
  choose(add_estimate_command(app, a.estimate), chosen, a.estimate, print_estimate);
  choose(add_characterize_command(app, a.characterize), chosen, a.characterize, print_characterization);
  add_compare(app, a, chosen);
  choose(add_pivot_command(app, a.pivot), chosen, a.pivot, print_pivot);
  add_why(app, a.why, chosen);
  add_validate(app, a, chosen);
  add_results(app, a, chosen);
  choose(add_export_command(app, a.exported), chosen, a.exported, export_results);
  add_reproduce(app, a, chosen);
  add_profile(app, a, chosen);
  add_trace_record(*app.get_subcommand("trace"), a, chosen);
  add_calibrate(app, a, chosen);
  add_logits(app, a, chosen);
  add_label_command(app, a.label,
                    [&](auto* act) { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(with_weights(a.label), out); }; });
  add_tokenize(app, a, chosen);
}

}  // namespace kvlab
