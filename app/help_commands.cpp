#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "app/commands/cite.h"
#include "app/commands/command.h"
#include "app/commands/describe.h"
#include "app/schema/schema.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

struct HelpArguments {
  std::string kind, name, shell;
  std::vector<std::string> cited, words;
  bool json = false;
};

// Bash splits words at '=' and ':' (COMP_WORDBREAKS) and replaces only the last part.
constexpr const char* kBash = R"sh(# Completion of kvlab. Load it with: source <(kvlab completion bash)
_kvlab() {
  local rest=${COMP_LINE:0:COMP_POINT} words=() blank word line i files=''
  for ((i = 0; i <= COMP_CWORD; i++)); do
    blank=${rest%%[![:space:]]*}
    rest=${rest#"$blank"}
    word=${COMP_WORDS[i]}
    if ((i == COMP_CWORD)); then word=$rest; else rest=${rest#"$word"}; fi
    if [[ -n $blank || $i == 0 ]]; then words+=("$word"); else words[${#words[@]}-1]+=$word; fi
  done
  local current=${words[${#words[@]}-1]} breaks=${COMP_WORDBREAKS//[^:=]/} after
  after=$current
  if [[ -n $breaks ]]; then after=${current##*[$breaks]}; fi
  COMPREPLY=()
  while IFS= read -r line; do
    word=${line%%$'\t'*}
    if [[ $line == :* ]]; then
      files=${line#:}
    elif [[ $word == "$current"* ]]; then
      COMPREPLY+=("${word#"${current%"$after"}"}")
    fi
  done < <("${words[0]/#\~/$HOME}" complete -- "${words[@]:1}" 2>/dev/null || printf ':files\n')
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace 2>/dev/null; fi
  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do
      if [[ $files == files || -d ${word/#\~/$HOME} || ( $files == yaml && $word == *.y?(a)ml ) ]]; then COMPREPLY+=("$word"); fi
    done < <(compgen -f -- "$after")
  fi
}
complete -F _kvlab kvlab ./kvlab
)sh";

// May also be `_kvlab` in a folder of $fpath.
constexpr const char* kZsh = R"sh(#compdef kvlab
# Completion of kvlab. Load it with: source <(kvlab completion zsh)
_kvlab() {
  local program=${(Q)words[1]} line item files='' found=1
  local -a closed open
  while IFS= read -r line; do
    item=${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}
    case $line in
      :*) files=${line#:} ;;
      *[=./]$'\t'*) open+=("$item") ;;
      *) closed+=("$item") ;;
    esac
  done < <("${program/#\~/$HOME}" complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null || print :files)
  _describe -t words word closed && found=0
  _describe -t words word open -S '' && found=0
  if [[ -n $files && $PREFIX == --*=* ]]; then compset -P '*='; fi
  case $files in
    files) _files && found=0 ;;
    folders) _files -/ && found=0 ;;
    yaml) _files -g '*.(yaml|yml)(-.)' && found=0 ;;
  esac
  return found
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
if [[ $funcstack[1] == _kvlab ]]; then _kvlab "$@"; else compdef _kvlab kvlab; fi
)sh";

constexpr const char* kFish = R"sh(# Completion of kvlab. Load it with: kvlab completion fish | source
function __kvlab_paths  # KIND BEGIN: paths of that kind that begin so
  switch $argv[1]
    case files
      __fish_complete_path $argv[2]
    case folders
      __fish_complete_directories $argv[2] ''
    case yaml
      __fish_complete_directories $argv[2] ''
      for path in $argv[2]*.yaml $argv[2]*.yml
        printf '%s\n' $path
      end
  end
end

function __kvlab_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l program (string replace -r -- '^~' $HOME $words[1])
  set -e words[1]
  set -l option (string match -r -- '^--[^=]*=' "$current")
  set -l lines ($program complete -- $words "$current" 2>/dev/null; or echo :files)
  for line in $lines
    if not string match -q -- ':*' $line
      printf '%s\n' $line
      continue
    end
    for path in (__kvlab_paths (string sub -s 2 -- $line) (string replace -- "$option" '' "$current"))
      printf '%s%s\n' "$option" $path
    end
  end
end
complete -c kvlab -f -a '(__kvlab_complete)'
)sh";

constexpr std::array<std::pair<const char*, const char*>, 3> kScripts = {{{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}}};

std::vector<std::string> completion_shells() {
  std::vector<std::string> shells;
  for (const auto& [shell, script] : kScripts) shells.emplace_back(shell);
  return shells;
}

// Calls `kvlab complete`, so it fits every version.
std::string completion_script(const std::string& shell) {
  for (const auto& [name, script] : kScripts)
    if (shell == name) return script;
  throw InputError("unknown shell '" + shell + "'" + suggestion(shell, completion_shells()));
}

struct FrontCommand {
  const char* name;
  const char* help;
  void (*add_options)(CLI::App& command);
};

// CLI11 has two overloads for a literal.
void add_front_flag(CLI::App& command, const std::string& name, const std::string& help) { command.add_flag(name, help); }

void add_results_argument(CLI::App& command) {
  command.add_option("folder", "results folders")->expected(1, CLI::detail::expected_max_vector_size)->check(offers(Offer::kResults));
}

void add_plot_options(CLI::App& plot) {
  add_results_argument(plot);
  add_front_flag(plot, "--all", "draw every value of a long sweep, not a few of them");
  plot.add_option("--recipe", "of a replay: draw this recipe layer by layer and head by head")->check(offers(Offer::kNames, "recipes"));
  plot.add_option("--set", "figures.NAME.KEY=VALUE: a setting of a figure")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)
      ->check(offers(Offer::kText));
  add_front_flag(plot, "--pgf", "also write NAME.pgf, pgfplots source for LaTeX");
  add_front_flag(plot, "--quiet", "do not say what was left out");
}

void add_report_options(CLI::App& report) {
  add_results_argument(report);
  report.add_option("--out", "where to write the page")->check(offers(Offer::kFiles));
}

void add_bench_options(CLI::App& bench) {
  bench.add_option("programs", "benchmarks to run; default: kernels and sim")->check(offers(Offer::kWords, "kernels sim instructions"));
  add_front_flag(bench, "--cpu", "the kernels of the CPU");
  add_front_flag(bench, "--gpu", "the kernels of the GPU; --gpu=N: of that number");
  add_front_flag(bench, "--update", "instructions: write the counts to bench/instructions.json");
}

constexpr std::array<FrontCommand, 7> kFrontCommands = {
    {{"bench", "build and run the benchmarks of kernels, simulator, or both", add_bench_options},
     {"build", "build the program", [](CLI::App& build) { add_front_flag(build, "--cuda", "with the GPU's kernels"); }},
     {"doctor", "say what is installed and what is missing", [](CLI::App&) {}},
     {"package", "write the program with its data as a .deb and a .tar.gz", [](CLI::App&) {}},
     {"plot", "draw the figures of results again", add_plot_options},
     {"report", "write one interactive HTML page of a result, or of two side by side", add_report_options},
     {"test", "build and run every test", [](CLI::App& test) { add_front_flag(test, "--dev", "with sanitizers"); }}}};

// Commands of ./kvlab or the Python package, for completion. $KVLAB_FRONT_DOOR lists them, separated by blanks; unset: none.
void add_front_door(CLI::App& app) {
  const char* const named = std::getenv("KVLAB_FRONT_DOOR");
  std::istringstream names(named == nullptr ? "" : named);
  for (std::string name; names >> name;)
    for (const FrontCommand& command : kFrontCommands)
      if (name == command.name) command.add_options(*app.add_subcommand(name, command.help));
}

// 0 if standard output is no terminal.
std::size_t terminal_columns() {
  winsize size{};
  return ::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string list_text(const HelpArguments& a) {
  if (a.kind.empty()) return a.json ? kinds_as_json() : join(list_kinds(), "\n") + "\n";
  const std::vector<Item> items = list_items(a.kind);
  return a.json ? items_as_json(items, false) : items_as_text(items, terminal_columns());
}

std::string description_text(const HelpArguments& a) {
  const std::vector<Item> items = describe_items(a.name);
  if (a.json) return items_as_json(items, true);
  std::string text;
  for (const Item& item : items) text += description_as_text(item);
  return text;
}

void add_lists(CLI::App& app, HelpArguments& a, Command& chosen) {
  CLI::App* list = app.add_subcommand("list", "what experiments can name: " + join(list_kinds(), ", "));
  list->add_option("kind", a.kind, join(list_kinds(), ", ") + "; default: print these kinds")
      ->check(offers(Offer::kWords, join(list_kinds(), " ")));
  list->add_flag("--json", a.json, "as JSON");
  choose(list, chosen, a, list_text);
  CLI::App* describe = app.add_subcommand(
      "describe", "a policy's source and parameters, or what a model or GPU is; a model also by its config.json or folder");
  describe->add_option("name", a.name, "as `kvlab list` prints it, or the path of a model")
      ->required()
      ->check(offers(Offer::kNames, join(list_kinds(), " ")))
      ->check(offers(Offer::kFiles));
  describe->add_flag("--json", a.json, "as JSON");
  choose(describe, chosen, a, description_text);
}

void add_completion(CLI::App& app, HelpArguments& a, Command& chosen) {
  CLI::App* completion = app.add_subcommand("completion", "print a script that completes command lines in bash, zsh or fish");
  completion->add_option("shell", a.shell, "bash, zsh or fish")->required()->check(offers(Offer::kWords, join(completion_shells(), " ")));
  choose(completion, chosen, a, [](const HelpArguments& given) { return completion_script(given.shell); });
  CLI::App* complete = app.add_subcommand("complete", "print the words that may replace the last of these")->group("");
  complete->add_option("words", a.words, "of a command line, after --");
  choose(complete, chosen, a, [&app](const HelpArguments& given) {
    add_front_door(app);
    return completion_as_text(completion_of(app, given.words));
  });
}

}  // namespace

void add_help_commands(CLI::App& app, Command& chosen) {
  auto& a = arguments_of<HelpArguments>(app);
  add_lists(app, a, chosen);
  CLI::App* schema = app.add_subcommand("schema", "print the JSON Schema of experiment files, for editors");
  choose(schema, chosen, a, [](const HelpArguments&) { return experiment_schema(); });
  add_completion(app, a, chosen);
  CLI::App* cite = app.add_subcommand("cite", "print BibTeX of what a result or these policies rest on, and of KVLab");
  cite->add_option("name", a.cited, "results folders, and policies as `kvlab list` prints them")
      ->required()
      ->check(offers(Offer::kNames, join(cited_kinds(), " ")))
      ->check(offers(Offer::kResults));
  choose(cite, chosen, a, [](const HelpArguments& given) { return citations(given.cited); });
}

}  // namespace kvlab
