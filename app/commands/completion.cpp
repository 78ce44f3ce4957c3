#include "app/commands/completion.h"

#include <fmt/format.h>

#include <map>

#include "app/commands/describe.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Kinds of `kvlab list` for the words after a command; their names are printed on demand.
const std::map<std::string, std::string>& positional_kinds() {
  static const std::map<std::string, std::string> kinds = {
      {"run", "experiments"}, {"submit", "experiments"}, {"reproduce", "claims"}, {"describe", "any"}, {"cite", "any"}};
  return kinds;
}

// The same of an option's value.
const std::map<std::string, std::string>& option_kinds() {
  static const std::map<std::string, std::string> kinds = {{"--model", "models"}, {"--hardware", "hardware"}, {"--kv-policy", "kv"}};
  return kinds;
}

// Commands of the script ./kvlab beside those of the program.
constexpr const char* kFrontDoor = "bench build doctor package plot report test";

struct CompletedCommand {
  std::string path;  // "trace record"
  std::string help;
  std::vector<std::string> commands, options, choices;
};

void add_options(const CLI::App& app, std::vector<std::string>& options) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  for (const CLI::App* group : app.get_subcommands([](const CLI::App* c) { return c->get_name().empty(); })) add_options(*group, options);
}

void add_commands(const CLI::App& app, const std::string& path, std::vector<CompletedCommand>& all) {
  CompletedCommand own{path, app.get_description(), {}, {}, {}};
  add_options(app, own.options);
  const std::vector<const CLI::App*> below = app.get_subcommands([](const CLI::App* c) { return !c->get_name().empty(); });
  for (const CLI::App* command : below) own.commands.push_back(command->get_name());
  if (path == "list") own.choices = list_kinds();
  if (path == "completion") own.choices = completion_shells();
  all.push_back(std::move(own));
  for (const CLI::App* command : below) add_commands(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), all);
}

std::vector<CompletedCommand> completed_commands(const CLI::App& app) {
  std::vector<CompletedCommand> all;
  add_commands(app, "", all);
  return all;
}

std::string kind_of_words(const std::string& path) {
  const auto found = positional_kinds().find(path);
  return found == positional_kinds().end() ? "" : found->second;
}

// One case per command: the words that may follow it, its options, and the kind of names it takes.
std::string bash_cases(const std::vector<CompletedCommand>& all) {
  std::string text;
  for (const CompletedCommand& c : all) {
    std::string words = join(c.commands, " ") + join(c.choices, " ");
    if (c.path.empty()) words += std::string(" ") + kFrontDoor;
    text += fmt::format("    '{}') words='{}'; options='{}'; kind='{}' ;;\n", c.path, words, join(c.options, " "), kind_of_words(c.path));
  }
  return text;
}

// A pattern of `case` that has the path of every command.
std::string path_patterns(const std::vector<CompletedCommand>& all) {
  std::string paths;
  for (const CompletedCommand& c : all)
    if (!c.path.empty()) paths += fmt::format("{}'{}'", paths.empty() ? "      " : " | ", c.path);
  return paths + ") ;;\n";
}

std::string bash_script(const std::vector<CompletedCommand>& all) {
  std::string option_cases;
  for (const auto& [option, kind] : option_kinds()) option_cases += fmt::format("    {}) value={} ;;\n", option, kind);
  return fmt::format(R"sh(# Completion of kvlab. Load it with: source <(kvlab completion bash)
_kvlab_names() {{  # PROGRAM KIND: the names of that kind
  local kind
  if [[ $2 == any ]]; then
    for kind in {}; do KVLAB_NO_BUILD=1 "$1" list "$kind" 2>/dev/null; done | cut -d ' ' -f 1
  else
    KVLAB_NO_BUILD=1 "$1" list "$2" 2>/dev/null | cut -d ' ' -f 1
  fi
}}

_kvlab() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} path='' words='' options='' kind='' value='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${{path:+$path }}${{COMP_WORDS[i]}}" in
{}      *) break ;;
    esac
    path="${{path:+$path }}${{COMP_WORDS[i]}}"
  done
  case $path in
{}  esac
  case $before in
{}  esac
  if [[ -n $value ]]; then
    words=$(_kvlab_names "${{COMP_WORDS[0]}}" "$value")
  elif [[ $current == -* ]]; then
    words=$options
  elif [[ -n $kind ]]; then
    words="$words $(_kvlab_names "${{COMP_WORDS[0]}}" "$kind")"
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o default -F _kvlab kvlab ./kvlab
)sh",
                     join(list_kinds(), " "), path_patterns(all), bash_cases(all), option_cases);
}

// zsh runs bash's completion functions, but has no mapfile.
std::string zsh_script(std::string bash) {
  const auto replace = [&](const std::string& what, const std::string& with) { bash.replace(bash.find(what), what.size(), with); };
  replace("source <(kvlab completion bash)", "source <(kvlab completion zsh)");
  replace("mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")", "COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))");
  return "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + bash;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

std::string fish_script(const std::vector<CompletedCommand>& all) {
  std::string text = fmt::format(R"sh(# Completion of kvlab. Load it with: kvlab completion fish | source
function __kvlab_names
  if test $argv[1] = any
    for kind in {}; KVLAB_NO_BUILD=1 kvlab list $kind 2>/dev/null; end | string replace -r ' .*' ''
  else
    KVLAB_NO_BUILD=1 kvlab list $argv[1] 2>/dev/null | string replace -r ' .*' ''
  end
end
)sh",
                                 join(list_kinds(), " "));
  for (const CompletedCommand& c : all) {
    const std::size_t blank = c.path.find(' ');
    const std::string here = c.path.empty()               ? "__fish_use_subcommand"
                             : blank == std::string::npos ? "__fish_seen_subcommand_from " + c.path
                                                          : "__fish_seen_subcommand_from " + c.path.substr(0, blank) +
                                                                "; and __fish_seen_subcommand_from " + c.path.substr(blank + 1);
    const std::string begin = fmt::format("complete -c kvlab -n '{}'", here);
    const std::vector<std::string>& words = c.commands.empty() ? c.choices : c.commands;
    if (!words.empty()) text += fmt::format("{} -f -a {}\n", begin, quoted(join(words, " ")));
    if (c.path.empty()) text += fmt::format("{} -f -a {}\n", begin, quoted(kFrontDoor));
    if (const std::string kind = kind_of_words(c.path); !kind.empty()) text += fmt::format("{} -a '(__kvlab_names {})'\n", begin, kind);
    for (const std::string& option : c.options) {
      const auto value = option_kinds().find(option);
      text += fmt::format("{} -l {}{}\n", begin, option.substr(2),
                          value == option_kinds().end() ? "" : fmt::format(" -x -a '(__kvlab_names {})'", value->second));
    }
  }
  return text;
}

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> shells = {"bash", "zsh", "fish"};
  return shells;
}

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const std::vector<CompletedCommand> all = completed_commands(app);
  if (shell == "bash") return bash_script(all);
  if (shell == "zsh") return zsh_script(bash_script(all));
  if (shell == "fish") return fish_script(all);
  throw InputError("unknown shell '" + shell + "'" + suggestion(shell, completion_shells()));
}

}  // namespace kvlab
