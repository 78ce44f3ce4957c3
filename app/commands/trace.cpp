
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/runs/sweep/experiment.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"
#include "engine/tokenizer/tokenizer.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/profile.h"
#include "traces/make_trace.h"
#include "traces/public_traces.h"
#include "traces/row_reader.h"
#include "traces/trace_tools.h"
#include "traces/write_trace.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// input: a trace, or an experiment (.yaml) with `trace:`.
struct TraceCommand {
  std::string input, output, output_format;
  std::string tokenizer;  // folder; "": formats with text estimate
  std::vector<std::string> set;
  std::optional<std::uint64_t> seed;  // nullopt: the experiment's, else 1
};

// tp 0: every degree in the profile. format "": by the folder's files.
struct ProfileCommand {
  std::string folder, output, format, model, hardware;
  int tp = 0;
};

// By a folder's tokenizer.json. kvlab_sim has none.
TokenCounter token_counter(const std::string& folder) {
  return [tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(folder))](std::string_view text) {
    return static_cast<std::int32_t>(tokenizer->encode(text, /*add_special=*/false).size());
  };
}

bool is_yaml(const std::string& file) { return file.ends_with(".yaml") || file.ends_with(".yml"); }

// Lists make several traces.
void refuse_lists(const Experiment& experiment) {
  std::string lists, how;
  for (std::size_t i = 0; i < experiment.axes.size(); ++i) {
    const std::string& axis = experiment.axes[i];
    const bool varies = std::any_of(experiment.runs.begin(), experiment.runs.end(),
                                    [&](const auto& r) { return r.labels[i] != experiment.runs[0].labels[i]; });
    if (!varies) continue;
    if (axis == "trace")
      throw InputError(experiment.file + ": its trace is several, by the list 'trace': name a file, or leave one in the list");
    if (!axis.starts_with("trace.")) continue;
    lists += fmt::format("{}'{}'", lists.empty() ? "" : ", ", axis);
    how += fmt::format(" --set {}=VALUE", axis.substr(std::string("trace.").size()));
  }
  if (!lists.empty()) throw InputError(fmt::format("{}: its trace is several, by the list {}: choose with{}", experiment.file, lists, how));
}

std::unique_ptr<TraceSource> open_trace_of(const TraceCommand& c) {
  const TokenCounter count_tokens = c.tokenizer.empty() ? TokenCounter{} : token_counter(c.tokenizer);
  std::vector<std::string> set;
  for (const std::string& one : c.set) set.push_back("trace." + one);
  if (is_yaml(c.input)) {
    const Experiment experiment = load_experiment(c.input, set);
    refuse_lists(experiment);
    Params p = experiment.params(experiment.runs[0]);
    Params trace = p.child("trace", "trace");
    trace.flag("perfetto", false, "of no meaning here");
    return make_trace(trace, c.seed.value_or(experiment.runs[0].seed), count_tokens);
  }
  if (std::error_code error; !fs::exists(c.input, error) && !error)
    throw InputError(open_error(c.input) + public_trace_advice(c.input));  // has no place in a file
  YAML::Emitter text;
  text << YAML::BeginMap << YAML::Key << "trace" << YAML::Value << YAML::BeginMap << YAML::Key << "file" << YAML::Value << c.input
       << YAML::EndMap << YAML::EndMap;
  Params p(parse_config(text.c_str(), "command line", set), std::make_shared<Choices>(), "the command line");
  Params trace = p.child("trace", "trace");
  return make_trace(trace, c.seed.value_or(1), count_tokens);
}

ProfileCommand with_format(ProfileCommand c) {
  if (c.format.empty()) c.format = profile_format_of(c.folder);
  return c;
}

std::vector<int> degrees_of(const ProfileCommand& c) {
  if (c.tp > 0) return {c.tp};
  return make_profile_format(c.format)->has_degrees() ? profile_tp_degrees(c.folder) : std::vector<int>{1};
}

// As given, else from the profile. Impossible or missing values are findings here, not errors.
CostSetup setup_of(const ProfileCommand& c, int tp) {
  YAML::Node root;
  root["profile"][c.format][make_profile_format(c.format)->folder_key()] = c.folder;
  root["profile"][c.format]["impossible"] = "keep";
  const std::vector<int> degrees = degrees_of({c.folder, "", c.format, "", "", 0});
  if (std::find(degrees.begin(), degrees.end(), tp) != degrees.end()) root["profile"][c.format]["missing"] = "roofline";
  root["parallel"]["tp"] = tp;
  if (!c.model.empty()) root["model"] = c.model;
  if (!c.hardware.empty()) root["hardware"] = c.hardware;
  Params p = Params::from_text(YAML::Dump(root), c.folder);
  return read_cost_setup(p);
}

struct FetchCommand {
  std::string name;
  std::string list;  // "": the shipped one
};

bool succeeds(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool has_program(const std::string& name) { return succeeds("command -v " + name + " >/dev/null 2>&1"); }

std::string sha256_of(const std::string& path) {
  const std::string tool = has_program("sha256sum") ? "sha256sum" : "shasum -a 256";
  std::FILE* const pipe = ::popen((tool + " < " + shell_word(path)).c_str(), "r");
  std::array<char, 65> digits{};
  const bool is_read = pipe != nullptr && std::fgets(digits.data(), digits.size(), pipe) != nullptr;
  if (pipe != nullptr) ::pclose(pipe);
  const std::string text = digits.data();
  if (!is_read || text.size() != 64) throw InputError("no SHA-256 of " + path + ": neither sha256sum nor shasum works here");
  return text;
}

// Resumes `part`. Returns true once complete.
bool download(const std::string& address, const std::string& part) {
  const std::string progress = ::isatty(STDERR_FILENO) != 0 ? "--progress-bar" : "--silent --show-error";
  if (has_program("curl"))
    return succeeds(fmt::format("curl --fail --location {} --continue-at - --output {} {} </dev/null", progress, shell_word(part),
                                shell_word(address)));
  if (has_program("wget"))
    return succeeds(fmt::format("wget --continue --quiet --output-document={} {} </dev/null", shell_word(part), shell_word(address)));
  throw InputError("neither curl nor wget is installed here");
}

void print_list(const std::vector<PublicTrace>& traces, const std::string& folder, std::ostream& out) {
  for (const PublicTrace& trace : traces) {
    std::error_code error;
    const bool is_there = fs::exists(fs::path(folder) / trace.file, error);
    out << fmt::format("{:<22} {}{}\n{:<22} {}; format {}{}{}\n", trace.name, trace.title, is_there ? " (fetched)" : "", "", trace.licence,
                       trace.format, trace.paper.empty() ? "" : "; ", trace.paper);
  }
  out << "\n./kvlab trace fetch NAME downloads one into " << folder << "\n";
}

const PublicTrace& find_trace(const std::vector<PublicTrace>& traces, const std::string& name) {
  std::vector<std::string> names;
  for (const PublicTrace& trace : traces) {
    if (trace.name == name) return trace;
    names.push_back(trace.name);
  }
  throw InputError("unknown public trace '" + name + "'" + suggestion(name, names));
}

// Throws if the sum differs.
void check_sum(const PublicTrace& trace, const std::string& part, std::ostream& out) {
  const std::string found = sha256_of(part);
  if (trace.sha256.empty()) {
    out << fmt::format("sha256 {} (none is listed to compare with)\n", found);
    return;
  }
  if (found == trace.sha256) return;
  fs::remove(part);
  throw InputError(
      fmt::format("{}: the SHA-256 of {} is {}, not {} as listed; the file is not kept", trace.name, trace.address, found, trace.sha256));
}

void print_use(const PublicTrace& trace, const std::string& path, std::ostream& out) {
  out << fmt::format("trace: {{file: {}}}   # format {}; {}\n", path, trace.format, trace.licence);
}

void fetch_trace(const FetchCommand& command, std::ostream& out) {
  const std::string list = command.list.empty() ? public_traces_list() : command.list;
  const std::vector<PublicTrace> traces = read_public_traces(list);
  const std::string folder = public_traces_folder(list);
  if (command.name.empty()) {
    print_list(traces, folder, out);
    return;
  }
  const PublicTrace& trace = find_trace(traces, command.name);
  const std::string path = (fs::path(folder) / trace.file).string(), part = path + ".part";
  if (fs::exists(path)) {
    out << path << " is there already\n";
    print_use(trace, path, out);
    return;
  }
  if (trace.address.empty()) {
    out << fmt::format("{} is no single file. In {}: {}\n", trace.name, folder, trace.steps);
    return;
  }
  fs::create_directories(fs::path(path).parent_path());
  std::error_code error;
  const bool is_whole = trace.bytes > 0 && fs::exists(part, error) && fs::file_size(part, error) == trace.bytes;
  if (!is_whole && !download(trace.address, part))
    throw InputError(fmt::format("{} cannot be downloaded: without a connection, save it elsewhere and put it at {}", trace.address, path));
  check_sum(trace, part, out);
  fs::rename(part, path);
  out << fmt::format("wrote {}: {} bytes\n", path, fs::file_size(path));
  print_use(trace, path, out);
}

void inspect_trace(const TraceCommand& command, std::ostream& out) { inspect(*open_trace_of(command), out); }

void convert_trace(const TraceCommand& command, std::ostream& out) {
  const std::unique_ptr<TraceSource> source = open_trace_of(command);
  const std::uint64_t requests = write_trace(*source, command.output, command.output_format);
  out << fmt::format("wrote {}: {} requests\n", command.output, requests);
  if (!source->skipped().empty()) out << "skipped: " << source->skipped() << "\n";
}

int lint_profile_folder(const ProfileCommand& asked, std::ostream& out) {
  const ProfileCommand command = with_format(asked);
  std::size_t errors = 0, warnings = 0;
  for (const int tp : degrees_of(command)) {
    const CostSetup setup = setup_of(command, tp);
    const std::vector<LintFinding> findings = lint_profile(*setup.profile, setup.model, setup.hardware);
    const std::vector<std::string>& notes = setup.profile->notes;  // the reader's notes, then the findings again
    for (std::size_t i = 0; i + findings.size() < notes.size(); ++i) out << fmt::format("note (tp {}): {}\n", tp, notes[i]);
    for (const LintFinding& finding : findings) {
      const bool is_error = finding.severity == LintFinding::Severity::kError;
      ++(is_error ? errors : warnings);
      out << fmt::format("{} (tp {}): {}\n", is_error ? "error" : "warning", tp, finding.text);
    }
  }
  out << fmt::format("{}: {} errors, {} warnings\n", command.folder, errors, warnings);
  return errors > 0 ? 1 : 0;
}

int convert_profile_folder(const ProfileCommand& asked, std::ostream& out) {
  const ProfileCommand command = with_format(asked);
  const std::unique_ptr<ProfileFormat> format = make_profile_format(command.format);
  if (const std::string why = format->why_not_converted(); !why.empty()) throw InputError(why);
  for (const int tp : degrees_of(command)) {
    const Profile profile = format->read(command.folder, tp);
    write_kvlab_profile(profile, command.output);
    out << fmt::format("wrote {}: tp {}, hash {}\n", command.output, tp, profile_hash(profile));
    for (const std::string& note : profile.notes) out << "note: " << note << "\n";
  }
  return 0;
}

void add_fetch_command(CLI::App& trace, Command& chosen) {
  CLI::App* fetch = trace.add_subcommand("fetch", "download a public trace; without a name, list them");
  auto& c = arguments_of<FetchCommand>(*fetch);
  fetch->add_option("name", c.name, "of the trace")->check(offers(Offer::kNames, "public_traces"));
  fetch->add_option("--list", c.list, "another list than traces/public_traces.yaml; traces go to public/ beside it");
  choose(fetch, chosen, c, fetch_trace);
}

}  // namespace

void add_trace_commands(CLI::App& app, Command& chosen) {
  CLI::App* trace = app.add_subcommand("trace", "inspect, convert, generate or fetch a request trace; record an attention trace");
  auto& c = arguments_of<TraceCommand>(*trace);
  trace->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool writes, void (*act)(const TraceCommand&, std::ostream&)) {
    CLI::App* one = trace->add_subcommand(name, help);
    one->add_option("file", c.input, "trace, or experiment (YAML) whose 'trace' is meant")->required();
    if (writes) one->add_option("output", c.output, "file to write: .csv or .jsonl, also packed as .gz or .zst")->required();
    if (writes)
      one->add_option("--to", c.output_format, "format to write: " + join(trace_writer_names(), ", ") + "; default: by the file's name")
          ->check(offers(Offer::kWords, join(trace_writer_names(), " ")));
    repeated(one->add_option("--set", c.set, "key=value of the 'trace' mapping, such as block_size=512; may be repeated"), Offer::kSettings,
             "trace");
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

void add_profile_commands(CLI::App& app, Command& chosen) {
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

}  // namespace kvlab
