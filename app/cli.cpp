#include "app/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <ostream>

#include "app/commands/calibrate.h"
#include "app/commands/clean.h"
#include "app/commands/describe.h"
#include "app/commands/fetch.h"
#include "app/commands/label.h"
#include "app/commands/logits.h"
#include "app/commands/merge.h"
#include "app/commands/record.h"
#include "app/commands/reproduce.h"
#include "app/commands/run_command.h"
#include "app/commands/submit.h"
#include "app/commands/tokenize.h"
#include "app/commands/trace.h"
#include "app/compare/compare.h"
#include "app/compare/points.h"
#include "app/compare/validate.h"
#include "app/machine_options.h"
#include "app/results/results.h"
#include "app/results/text_file.h"
#include "base/text.h"
#include "engine/model/record.h"

namespace kvlab {

namespace {

// The arguments' values. Only the chosen command's part is used.
struct Arguments {
  std::string kind, name, real, against, folder_a, folder_b;
  RunCommand run;
  TraceCommand trace;
  FetchCommand fetch;
  RecordCommand record;
  LogitsCommand logits;
  LabelCommand label;
  ProfileCommand profile;
  CalibrateCommand calibrate;
  TokenizeCommand tokenize;
  CleanCommand clean;
  PointsCommand points;
  EstimateCommand estimate;
  CharacterizeCommand characterize;
  ReproduceCommand reproduce;
  MergeCommand merge;
  SubmitCommand submit;
  std::size_t num_requests = 10;
  bool json = false, every = false, quiet = false;
};

// As 'seed' of an experiment. An unsigned option alone would take -1 for 2^64 - 1.
CLI::Range seed_range() { return {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}; }

using Command = std::function<int(std::ostream& out, std::ostream& err)>;

void add_trace_record(CLI::App& trace, Arguments& a, Command& chosen) {
  CLI::App* record = trace.add_subcommand("record", "run a model on a prompt and record its attention (safetensors)");
  record->add_option("--model", a.record.model, "folder in Hugging Face layout: config.json and safetensors")->required();
  CLI::Option_group* input = record->add_option_group("prompt");
  input->add_option("--ids", a.record.ids_file, "JSON list of token ids, or {ids, continuation, task, needles, question_begin}");
  input->add_option("--text", a.record.text_file,
                    "text, for the model's tokenizer; of a byte-level model the bytes are the tokens, behind <s>");
  input->require_option(1);
  record->add_option("--out", a.record.output, "file to write")->required();
  record->add_option("--prompt-tokens", a.record.prompt_tokens, "take so many tokens of the input; default: all")
      ->check(CLI::Range(1, 1 << 28));
  record->add_option("--decode-tokens", a.record.decode_tokens, "tokens to decode greedily behind them")->check(CLI::Range(0, 1 << 28));
  record->add_option("--chunk-tokens", a.record.chunk_tokens, "prefill in chunks of so many tokens; default: in one piece")
      ->check(CLI::Range(1, 1 << 28));
  record->add_flag("--pre-rope", a.record.pre_rope, "also queries and keys before RoPE");
  record->add_flag("--hidden", a.record.hidden, "also the inputs of the attention layers");
  record->add_flag("--w-o", a.record.w_o, "also the output projections");
  record->add_flag("--w-q", a.record.w_q, "also the projections to queries");
  record->add_option("--pass", a.record.passes, "also an extra pass: " + join(extra_pass_names(), ", ") + "; may be repeated")
      ->allow_extra_args(false);
  record->add_option("--kv-policy", a.record.kv_policy, "recipe that acts on the cache meanwhile: what is recorded is what it left");
  record->add_option("--budget-tokens", a.record.budget_tokens, "of the recipe; default: as its file says")->check(CLI::Range(1, 1 << 28));
  record->add_option("--backend", a.record.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  record->add_option("--dtype", a.record.dtype, "of the floats in the file; default: f16")->check(CLI::IsMember({"f16", "f32"}));
  record->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return record_trace(a.record, out); }; });
}

void add_trace_fetch(CLI::App& trace, Arguments& a, Command& chosen) {
  CLI::App* fetch = trace.add_subcommand("fetch", "download a public trace; without a name, list them");
  fetch->add_option("name", a.fetch.name, "of the trace");
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
    if (writes) one->add_option("--to", a.trace.output_format, "format to write: csv, jsonl or mooncake; default: by the file's name");
    one->add_option("--set", a.trace.set, "key=value of the 'trace' mapping, such as block_size=512; may be repeated")
        ->allow_extra_args(false);
    one->add_option("--seed", a.trace.seed, "of random choices")->check(seed_range());
    one->add_option("--tokenizer", a.trace.tokenizer, "folder with tokenizer.json that counts the tokens of texts (sharegpt)");
    one->callback([&a, &chosen, act] { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(a.trace, out); }; });
  };
  add("inspect", "print rates, lengths and sharing of a trace", false, inspect_trace);
  add("convert", "write a trace in another format", true, convert_trace);
  add("generate", "write the trace that an experiment's 'trace: {generate: ...}' describes", true, convert_trace);
  add_trace_fetch(*trace, a, chosen);
  add_trace_record(*trace, a, chosen);
}

void add_logits(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* logits = app.add_subcommand("logits", "run a model and write its logits");
  logits->add_option("--model", a.logits.model, "folder in Hugging Face layout: config.json and safetensors")->required();
  logits->add_option("--ids", a.logits.ids_file, "safetensors with token ids '0.ids', '1.ids', ...")->required();
  logits->add_option("--out", a.logits.output, "safetensors to write: '0.logits', '1.logits', ..., one row for each token")->required();
  logits->add_option("--chunk-tokens", a.logits.chunk_tokens, "prefill in chunks of so many tokens; default: in one piece")
      ->check(CLI::Range(1, 1 << 28));
  logits->add_option("--backend", a.logits.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  logits->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return write_logits(a.logits, out); }; });
}

void add_profile(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* profile = app.add_subcommand("profile", "check or convert measured kernel tables");
  profile->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool writes, int (*act)(const ProfileCommand&, std::ostream&)) {
    CLI::App* one = profile->add_subcommand(name, help);
    one->add_option("folder", a.profile.folder, "profile")->required();
    if (writes) one->add_option("output", a.profile.output, "folder to write, in our own format")->required();
    one->add_option("--format", a.profile.format, "of the folder: bundle, vidur, kvlab or aisimulate; default: by its files")
        ->check(CLI::IsMember({"bundle", "vidur", "kvlab", "aisimulate"}));
    if (!writes) one->add_option("--model", a.profile.model, "model measured; default: as the profile says");
    if (!writes) one->add_option("--hardware", a.profile.hardware, "GPU measured; default: as the profile says");
    one->add_option("--tp", a.profile.tp, "tensor-parallel degree; default: every one there is")->check(CLI::Range(1, 1024));
    one->callback([&a, &chosen, act] { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(a.profile, out); }; });
  };
  add("lint", "compare every entry with the GPU's datasheet", false, lint_profile_folder);
  add("convert", "write a bundle or Vidur CSVs in our own format; with --format aisimulate the tables of a Python package", true,
      convert_profile_folder);
}

void add_calibrate(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("calibrate", "measure this machine's kernels and write a profile that simulations can use");
  CLI::Option_group* device = one->add_option_group("device");
  device->add_flag("--cpu", a.calibrate.cpu, "the CPU, with the CPU's kernels");
  device->add_option("--gpu", a.calibrate.gpu, "the GPU of this number; needs a build with CUDA");
  device->require_option(1);
  one->add_option("--minutes", a.calibrate.minutes, "how long to measure; default: 10");
  one->add_option("--model", a.calibrate.model, "a name in profiles/models or a config.json; default: llama-3.1-8b, with --cpu the probe");
  one->add_option("--hardware", a.calibrate.hardware,
                  "datasheet to check against: a name in profiles/hardware; default: by the GPU's name");
  one->add_option("--out", a.calibrate.out,
                  "folder to write; default: profiles/NAME. A folder of the same device, model and seed is gone on with");
  one->add_option("--seed", a.calibrate.seed, "of the points that are held out to state the error; default: 1")->check(seed_range());
  one->add_option("--kv-policy", a.calibrate.kv_policies,
                  "recipes whose operations are timed too, as the engine calls them; others without a table are priced by the roofline");
  one->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream& err) { return calibrate_device(a.calibrate, out, err); }; });
}

void add_list(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* list = app.add_subcommand("list", "what experiments can name: " + join(list_kinds(), ", "));
  list->add_option("kind", a.kind, join(list_kinds(), ", ") + "; default: print these kinds");
  list->add_flag("--json", a.json, "as JSON");
  list->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) {
      if (a.kind.empty()) {
        out << (a.json ? kinds_as_json() : join(list_kinds(), "\n") + "\n");
        return 0;
      }
      const std::vector<Item> items = list_items(a.kind);
      out << (a.json ? items_as_json(items, false) : items_as_text(items));
      return 0;
    };
  });
  CLI::App* describe = app.add_subcommand(
      "describe", "a policy's source and parameters, or what a model or GPU is; a model also by its config.json or folder");
  describe->add_option("name", a.name, "as `kvlab list` prints it, or the path of a model")->required();
  describe->add_flag("--json", a.json, "as JSON");
  describe->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) {
      const std::vector<Item> items = describe_items(a.name);
      if (a.json)
        out << items_as_json(items, true);
      else
        for (const Item& item : items) out << description_as_text(item);
      return 0;
    };
  });
}

void add_compare(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* compare = app.add_subcommand("compare", "differences between two results folders, run by run");
  compare->add_option("A", a.folder_a, "results folder")->required();
  compare->add_option("B", a.folder_b, "results folder")->required();
  compare->add_flag("--all", a.every, "every metric instead of the main ones");
  compare->add_option("--requests", a.num_requests, "requests to show that moved most; 0: none");
  compare->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) {
      out << compare_results(a.folder_a, a.folder_b, a.every, a.num_requests);
      return 0;
    };
  });
}

void add_validate(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* validate = app.add_subcommand("validate", "compare results with a real engine's log, or simulate measured points");
  CLI::Option_group* measured = validate->add_option_group("measured");
  CLI::Option* const requests = measured->add_option("--requests", a.real, "the engine's requests.jsonl");
  CLI::Option* const points = measured->add_option("--points", a.points.file, "measured TPOT by model, GPU and load (CSV)");
  measured->require_option(1);
  CLI::Option* const against = validate->add_option("--against", a.against, "--requests: results folder")->excludes(points);
  CLI::Option* const out_folder = validate->add_option("--out", a.points.out, "--points: folder to write")->excludes(requests);
  requests->needs(against);
  points->needs(out_folder);
  validate->add_option("--profile", a.points.options.profile, "--points: 'profile' of each run, YAML in which $COLUMN is the row's value")
      ->needs(points);
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

void add_clean(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* clean = app.add_subcommand("clean", "remove runs that the newest sweep of a results folder does not use, after saying which");
  clean->add_option("folder", a.clean.folder, "results folder")->required();
  clean->add_flag("--yes", a.clean.yes, "remove them without asking");
  clean->callback([&a, &chosen] {
    chosen = [&a](std::ostream& out, std::ostream&) {
      a.clean.can_ask = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
      return clean_results(a.clean, std::cin, out);
    };
  });
}

void add_tokenize(CLI::App& app, Arguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("tokenize", "print a text's token ids as a model's tokenizer.json gives them, or the text of ids");
  one->add_option("--model", a.tokenize.model, "folder with tokenizer.json")->required();
  CLI::Option_group* input = one->add_option_group("input");
  input->add_option("--text", a.tokenize.text_file, "text to tokenize; -: standard input");
  input->add_option("--ids", a.tokenize.ids_file, "JSON list of ids whose text to print; -: standard input");
  input->require_option(1);
  one->add_flag("--tokens", a.tokenize.shows_tokens, "--text: print one id and its token a line")->excludes("--ids");
  one->add_flag("--no-special", a.tokenize.without_special, "--text: without what the tokenizer adds (<s>); --ids: without special tokens");
  one->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return tokenize(a.tokenize, out); }; });
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
  one->add_option("name", a.reproduce.names, "claims, as `kvlab list claims` prints them, or files");
  one->add_flag("--all", a.reproduce.every, "every claim");
  one->add_flag("--json", a.reproduce.json, "as JSON: a list of {name, system, published, ours, verdict}");
  one->add_option("--out", a.reproduce.out, "folder that gets the table: claims.md, claims.csv and their figure");
  one->add_option("--jobs", a.reproduce.runs.jobs, "runs at a time; default: the number of cores")->check(CLI::Range(1, 4096));
  one->add_option("--runs", a.reproduce.runs.folder, "folder of the runs; default: results/claims");
  one->add_flag("--force", a.reproduce.runs.force, "do runs again whose inputs have not changed");
  one->add_flag("--quiet", a.reproduce.quiet, "no progress");
  one->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream& err) { return reproduce_claims(a.reproduce, out, err); }; });
}

bool is_option_group(const CLI::App* app) { return app->get_name().empty(); }

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* group : command.get_subcommands(is_option_group)) {
    for (std::string& name : option_names(*group)) names.push_back(std::move(name));
  }
  return names;
}

void check_option(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  const std::vector<std::string> names = option_names(command);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw InputError("unknown option '" + name + "' of '" + command.get_name() + "'" + suggestion(name, names));
}

// The error on a word that is no command, or no option of its command, names the nearest one; CLI11 only says what is missing.
void check_words(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    if (word == "--") return;  // no options after it
    if (word.starts_with("--")) {
      check_option(*at, word);
      continue;
    }
    const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App* c) { return !is_option_group(c); });
    if (commands.empty()) continue;
    if (word.starts_with('-')) return;
    std::vector<std::string> names;
    for (const CLI::App* command : commands) names.push_back(command->get_name());
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end()) throw InputError("unknown command '" + word + "'" + suggestion(word, names));
    at = commands[static_cast<std::size_t>(found - names.begin())];
  }
}

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// A full disk is noticed by the flush alone.
void require_written(std::ostream& out) {
  errno = 0;
  if (out.flush()) return;
  throw std::runtime_error(std::string("standard output cannot be written") + (errno == 0 ? "" : std::string(": ") + std::strerror(errno)));
}

// Returns the status to leave with at once, or -1 with `chosen` set.
int parse(CLI::App& app, const std::vector<std::string>& arguments, std::ostream& out) {
  try {
    check_words(app, arguments);
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp&) {
    out << app.help();  // of the chosen command
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    out << app.help("", CLI::AppFormatMode::All);
    return 0;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << "\n";
    return 0;
  } catch (const CLI::ParseError& e) {
    throw InputError(one_line(e.what()) + " (kvlab --help shows what there is)");
  }
  return -1;
}

}  // namespace

int run_cli(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  Arguments a;
  Command chosen;
  CLI::App app("A wind tunnel for KV-cache policies and LLM schedulers", "kvlab");
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvlab " + program_version());
  add_run_command(app, a.run, [&] { chosen = [&a](std::ostream& out, std::ostream& err) { return run_experiment(a.run, out, err); }; });
  add_merge_command(app, a.merge, [&] { chosen = [&a](std::ostream& out, std::ostream& err) { return merge_shards(a.merge, out, err); }; });
  add_submit_command(app, a.submit, [&] { chosen = [&a](std::ostream& out, std::ostream&) { return submit_sweep(a.submit, out); }; });
  add_trace(app, a, chosen);
  add_list(app, a, chosen);
  add_estimates(app, a, chosen);
  add_compare(app, a, chosen);
  add_validate(app, a, chosen);
  add_clean(app, a, chosen);
  add_reproduce(app, a, chosen);
  add_profile(app, a, chosen);
  add_calibrate(app, a, chosen);
  add_logits(app, a, chosen);
  add_label_command(app, a.label, [&](auto* act) { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(a.label, out); }; });
  add_tokenize(app, a, chosen);
  try {
    const int status = parse(app, arguments, out);
    const int done = status >= 0 ? status : chosen(out, err);
    require_written(out);
    return done;
  } catch (const InputError& e) {
    err << "kvlab: " << one_line(e.what()) << "\n";
    return 2;
  } catch (const std::exception& e) {
    err << "kvlab: " << one_line(e.what()) << "\n";
    return 1;
  }
}

}  // namespace kvlab
