#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace kvlab {

struct Recipe;

// Results go to `out`, progress and warnings to `err`; returns the exit status.
using Command = std::function<int(std::ostream& out, std::ostream& err)>;

// Live as long as `app`; once per app.
template <class Arguments>
Arguments& arguments_of(CLI::App& app) {
  const auto own = std::make_shared<Arguments>();
  app.preparse_callback([own](std::size_t) {});
  return *own;
}

// If `one` is given, `chosen` becomes act(arguments, out), act(arguments, out, err), or prints act(arguments). Without a returned status it
// is 0. Options write into `arguments`, which must outlive `app`.
template <class Arguments, class Act>
void choose(CLI::App* one, Command& chosen, Arguments& arguments, Act act) {
  one->callback([&chosen, &arguments, act] {
    chosen = [&arguments, act](std::ostream& out, [[maybe_unused]] std::ostream& err) {
      if constexpr (std::is_invocable_v<Act, Arguments&>)
        out << act(arguments);
      else if constexpr (std::is_invocable_v<Act, Arguments&, std::ostream&, std::ostream&>)
        return act(arguments, out, err);
      else if constexpr (std::is_invocable_r_v<int, Act, Arguments&, std::ostream&>)
        return act(arguments, out);
      else
        act(arguments, out);
      return 0;
    };
  });
}

// Decimal in [0, 2^63). CLI11's strtoull would take -1 and clamp overflow.
inline CLI::Validator whole_number() {
  const auto check = [](std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= 0) return "";
    return "Value " + text + " not in range: write a whole number from 0 to " + std::to_string(std::numeric_limits<std::int64_t>::max());
  };
  return CLI::Validator(check, "INT");
}

// Source of values for completion.
enum class Offer {
  kNames,        // of `kvlab list KIND`, KINDs separated by blanks; also "recipes" (without parts), "public_traces"
  kWords,        // given words, separated by blanks; only the first value of an argument
  kResults,      // results/NAME, and folders
  kResultNames,  // NAME
  kSettings,     // KEY=VALUE of an experiment, below the given key ("": top level)
  kAxes,         // in summary.csv of the first argument's results folder
  kAxisValues,   // AXIS=VALUE of the same
  kMetrics,      // of the same
  kRuns,         // IDs of the same
  kFiles,
  kFolders,
  kYamlFiles,
  kText  // no values
};

struct Offered {
  Offer source;
  std::string of;
};

// CLI11 keeps a check's name: "offers 0 schedulers".
inline constexpr const char* kOffersPrefix = "offers ";

// A check that accepts everything. Several may follow each other.
inline CLI::Validator offers(Offer source, const std::string& of = "") {
  CLI::Validator accepts([](std::string&) { return std::string(); }, "");
  return accepts.name(kOffersPrefix + std::to_string(static_cast<int>(source)) + " " + of);
}

// One value each time it is given.
inline void repeated(CLI::Option* option, Offer source, const std::string& of = "") {
  option->allow_extra_args(false)->check(offers(source, of));
}

// Without any: the words of a CLI::IsMember, files for text, none for a number.
std::vector<Offered> offers_of(CLI::Option& option);

// Quotes text for a POSIX shell.
inline std::string shell_word(const std::string& text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

// Each adds subcommands that set `chosen` when parsed. `app` owns their arguments.
void add_calibrate_command(CLI::App& app, Command& chosen);
void add_characterize_command(CLI::App& app, Command& chosen);
void add_clean_command(CLI::App& app, Command& chosen);
void add_estimate_command(CLI::App& app, Command& chosen);
void add_export_command(CLI::App& app, Command& chosen);
void add_help_commands(CLI::App& app, Command& chosen);
void add_label_command(CLI::App& app, Command& chosen);
void add_merge_command(CLI::App& app, Command& chosen);
void add_pivot_command(CLI::App& app, Command& chosen);
void add_reproduce_command(CLI::App& app, Command& chosen);
void add_results_command(CLI::App& app, Command& chosen);
void add_run_command(CLI::App& app, Command& chosen);
void add_submit_command(CLI::App& app, Command& chosen);
void add_trace_commands(CLI::App& app, Command& chosen);
void add_profile_commands(CLI::App& app, Command& chosen);
void add_record_command(CLI::App& trace, Command& chosen);
void add_logits_command(CLI::App& app, Command& chosen);
void add_tokenize_command(CLI::App& app, Command& chosen);
// All but `run`.
void add_other_commands(CLI::App& app, Command& chosen);

// Removes runs and files that the newest sweep does not use, after confirmation; only those named by kvlab's manifests.
void clean_results(const std::string& folder, bool yes, std::ostream& out);

// A Slurm job array, a task per shard, and a job that merges them.
struct SubmitCommand {
  std::string file, out;
  std::vector<std::string> set, options;  // options: of sbatch, "--partition=long"
  std::uint32_t shards = 0;               // 0: one per run, at most 16
  int cpus = 1;
  bool slurm = false, sends = false;
};

// Nodes must share the working folder and the program.
struct SlurmScripts {
  std::string array, merge;
};
SlurmScripts slurm_scripts(const SubmitCommand& command, const std::string& name, const std::string& working_folder,
                           const std::string& program);

// As load_recipe. Throws InputError if unknown.
Recipe named_recipe(const std::string& name, std::int32_t budget_tokens = 0);

// Throws InputError with the first byte that is not UTF-8.
void check_utf8(std::string_view text, const std::string& file);

struct OfferedWord {
  std::string word, help;
};

// files: paths that a shell adds: "files", "folders", "yaml" (folders and YAML files), "" (none).
struct Completion {
  std::vector<OfferedWord> candidates;
  std::string files;
};

// Candidates for the last of `words`, without the program's name. Shells filter them.
Completion completion_of(CLI::App& app, const std::vector<std::string>& words);

// Lines "word<tab>description", then ":files", ":folders" or ":yaml" if a shell is to add paths.
std::string completion_as_text(const Completion& completion);

}  // namespace kvlab
