#include <unistd.h>

#include <filesystem>
#include <ostream>

#include "app/commands/command.h"
#include "app/commands/model_commands.h"
#include "app/commands/trace.h"
#include "app/compare/compare.h"
#include "app/compare/points.h"
#include "app/results/safe_files.h"
#include "app/why/why.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "engine/model/record.h"
#include "sim/cost/profile_format.h"
#include "traces/write_trace.h"

namespace kvlab {

namespace {

void add_trace(CLI::App& app, Command& chosen) {
  CLI::App* trace = app.add_subcommand("trace", "inspect, convert, generate or fetch a request trace; record an attention trace");
  auto& c = arguments_of<TraceCommand>(*trace);
  trace->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool writes, int (*act)(const TraceCommand&, std::ostream&)) {
    CLI::App* one = trace->add_subcommand(name, help);
    one->add_option("file", c.input, "trace, or experiment (YAML) whose 'trace' is meant")->required();
    if (writes) one->add_option("output", c.output, "file to write: .csv or .jsonl, also packed as .gz or .zst")->required();
    if (writes)
      one->add_option("--to", c.output_format, "format to write: " + join(trace_writer_names(), ", ") + "; default: by the file's name")
          ->check(offers(Offer::kWords, join(trace_writer_names(), " ")));
    one->add_option("--set", c.set, "key=value of the 'trace' mapping, such as block_size=512; may be repeated")
        ->allow_extra_args(false)
        ->check(offers(Offer::kSettings, "trace"));
    one->add_option("--seed", c.seed, "of random choices")->check(whole_number());
    one->add_option("--tokenizer", c.tokenizer, "folder with tokenizer.json that counts the tokens of texts (sharegpt)")
        ->check(offers(Offer::kFolders));
    choose(one, chosen, c, act);
  };
  add("inspect", "print rates, lengths and sharing of a trace", false, inspect_trace);
  add("convert", "write a trace in another format", true, convert_trace);
  add("generate", "write the trace that an experiment's 'trace: {generate: ...}' describes", true, convert_trace);
  add_fetch_command(*trace, chosen);
}

void add_profile(CLI::App& app, Command& chosen) {
  CLI::App* profile = app.add_subcommand("profile", "check or convert measured kernel tables");
  auto& c = arguments_of<ProfileCommand>(*profile);
  profile->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool writes, int (*act)(const ProfileCommand&, std::ostream&)) {
    CLI::App* one = profile->add_subcommand(name, help);
    one->add_option("folder", c.folder, "profile")->required()->check(offers(Offer::kFolders));
    if (writes) one->add_option("output", c.output, "folder to write, in our own format")->required();
    const std::vector<std::string> formats = profile_format_names();
    one->add_option("--format", c.format, "of the folder: " + join(formats, ", ") + "; default: by its files")
        ->check(CLI::IsMember(formats));
    if (!writes)
      one->add_option("--model", c.model, "model measured; default: as the profile says")
          ->check(offers(Offer::kNames, "models"))
          ->check(offers(Offer::kFiles));
    if (!writes)
      one->add_option("--hardware", c.hardware, "GPU measured; default: as the profile says")->check(offers(Offer::kNames, "hardware"));
    one->add_option("--tp", c.tp, "tensor-parallel degree; default: every one there is")->check(CLI::Range(1, 1024));
    choose(one, chosen, c, act);
  };
  add("lint", "compare every entry with the GPU's datasheet", false, lint_profile_folder);
  add("convert", "write a bundle or Vidur CSVs in our own format; with --format aisimulate the tables of a Python package", true,
      convert_profile_folder);
}

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
  compare->add_option("--where", c.where, "AXIS=VALUE of the runs to take, in the folders that have the axis; may be repeated")
      ->allow_extra_args(false)
      ->check(offers(Offer::kAxisValues));
  compare->add_option("--requests", c.num_requests, "requests to show that moved most; 0: none")->check(whole_number());
  choose(compare, chosen, c, [](const CompareCommand& given, std::ostream& out) {
    out << compare_results(given.folder_a, given.folder_b, given.every, given.num_requests, given.where);
    return 0;
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

template <class OfModel>
OfModel with_weights(OfModel command) {
  command.model = weights_folder(command.model);
  return command;
}

void add_trace_record(CLI::App& trace, Command& chosen) {
  CLI::App* record = trace.add_subcommand("record", "run a model on a prompt and record its attention (safetensors)");
  auto& c = arguments_of<RecordCommand>(*record);
  record->add_option("--model", c.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  CLI::Option_group* input = record->add_option_group("prompt");
  input->add_option("--ids", c.ids_file, "JSON list of token ids, or {ids, continuation, task, needles, question_begin}");
  input->add_option("--text", c.text_file, "text, for the model's tokenizer; of a byte-level model the bytes are the tokens, after <s>");
  input->require_option(1);
  record->add_option("--out", c.output, "file to write")->required();
  record->add_option("--prompt-tokens", c.prompt_tokens, "number of tokens of the input to take; default: all")
      ->check(CLI::Range(1, 1 << 28));
  record->add_option("--decode-tokens", c.decode_tokens, "tokens to decode greedily after them")->check(CLI::Range(0, 1 << 28));
  record->add_option("--chunk-tokens", c.chunk_tokens, "tokens of a prefill chunk; default: in one piece")->check(CLI::Range(1, 1 << 28));
  record->add_flag("--pre-rope", c.pre_rope, "also queries and keys before RoPE");
  record->add_flag("--hidden", c.hidden, "also the inputs of the attention layers");
  record->add_flag("--w-o", c.w_o, "also the output projections");
  record->add_flag("--w-q", c.w_q, "also the projections to queries");
  record->add_option("--pass", c.passes, "also an extra pass: " + join(extra_pass_names(), ", ") + "; may be repeated")
      ->allow_extra_args(false)
      ->check(offers(Offer::kWords, join(extra_pass_names(), " ")));
  record->add_option("--kv-policy", c.kv_policy, "recipe that acts on the cache meanwhile: what is recorded is what it left")
      ->check(offers(Offer::kNames, "recipes"));
  record->add_option("--budget-tokens", c.budget_tokens, "of the recipe; default: as its file says")->check(CLI::Range(1, 1 << 28));
  record->add_option("--backend", c.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  record->add_option("--dtype", c.dtype, "of the floats in the file; default: f16")->check(CLI::IsMember({"f16", "f32"}));
  choose(record, chosen, c, [](const RecordCommand& c, std::ostream& out) { return record_trace(with_weights(c), out); });
}

void add_logits(CLI::App& app, Command& chosen) {
  CLI::App* logits = app.add_subcommand("logits", "run a model and write its logits");
  auto& c = arguments_of<LogitsCommand>(*logits);
  logits->add_option("--model", c.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  logits->add_option("--ids", c.ids_file, "safetensors with token ids '0.ids', '1.ids', ...")->required();
  logits->add_option("--out", c.output, "safetensors to write: '0.logits', '1.logits', ..., one row for each token")->required();
  logits->add_option("--chunk-tokens", c.chunk_tokens, "tokens of a prefill chunk; default: in one piece")->check(CLI::Range(1, 1 << 28));
  logits->add_option("--backend", c.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  choose(logits, chosen, c, [](const LogitsCommand& c, std::ostream& out) { return write_logits(with_weights(c), out); });
}

void add_tokenize(CLI::App& app, Command& chosen) {
  CLI::App* one = app.add_subcommand("tokenize", "print a text's token ids as a model's tokenizer.json gives them, or the text of ids");
  auto& c = arguments_of<TokenizeCommand>(*one);
  one->add_option("--model", c.model, "folder with tokenizer.json")->required()->check(offers(Offer::kFolders));
  CLI::Option_group* input = one->add_option_group("input");
  input->add_option("--text", c.text_file, "text to tokenize; -: standard input");
  input->add_option("--ids", c.ids_file, "JSON list of ids whose text to print; -: standard input");
  input->require_option(1);
  one->add_flag("--tokens", c.shows_tokens, "--text: print one id and its token a line")->excludes("--ids");
  one->add_flag("--no-special", c.without_special, "--text: without what the tokenizer adds (<s>); --ids: without special tokens");
  choose(one, chosen, c, [](const TokenizeCommand& c, std::ostream& out) { return tokenize(with_weights(c), out); });
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
  add_trace(app, chosen);
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
  add_profile(app, chosen);
  add_trace_record(*app.get_subcommand("trace"), chosen);
  add_calibrate_command(app, chosen);
  add_logits(app, chosen);
  add_label_command(app, chosen);
  add_tokenize(app, chosen);
}

}  // namespace kvlab
