#include "app/commands/trace.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "app/runs/sweep/experiment.h"
#include "base/read_file.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/profile.h"
#include "sim/cost/profile_format.h"
#include "sim/cost/profile_lint.h"
#include "traces/make_trace.h"
#include "traces/public_traces.h"
#include "traces/trace_tools.h"
#include "traces/write_trace.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

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

}  // namespace

int inspect_trace(const TraceCommand& command, std::ostream& out) {
  inspect(*open_trace_of(command), out);
  return 0;
}

int convert_trace(const TraceCommand& command, std::ostream& out) {
  const std::unique_ptr<TraceSource> source = open_trace_of(command);
  const std::uint64_t requests = write_trace(*source, command.output, command.output_format);
  out << fmt::format("wrote {}: {} requests\n", command.output, requests);
  if (!source->skipped().empty()) out << "skipped: " << source->skipped() << "\n";
  return 0;
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

}  // namespace kvlab
