#include "app/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>

#include "app/commands/command.h"
#include "app/commands/other_commands.h"
#include "app/commands/run_command.h"
#include "app/results/results.h"
#include "base/text.h"

namespace kvlab {

namespace {

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

// Values of --vllm-args and --sglang-args begin with dashes, so they are joined to their option.
std::vector<std::string> joined(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  bool takes_value = false, took_option = false, is_rest = false;
  for (const std::string& word : arguments) {
    is_rest = is_rest || (word == "--" && !takes_value);
    if (is_rest) {  // no options after it
      words.push_back(word);
      continue;
    }
    if (took_option && word.find_first_not_of("0123456789.") == std::string::npos)
      throw InputError("the options of an engine are one argument, in quotes: " + words.back().substr(0, words.back().find('=')) + " '" +
                       words.back().substr(words.back().find('=') + 1) + " " + word + "'");
    if (takes_value)
      words.back() += "=" + word;
    else
      words.push_back(word);
    took_option = takes_value && word.starts_with("--") && word.find_first_of(" =") == std::string::npos;
    takes_value = !takes_value && (word == "--vllm-args" || word == "--sglang-args");
  }
  return words;
}

// Returns the status to leave with at once, or -1 with `chosen` set.
int parse(CLI::App& app, const std::vector<std::string>& given, std::ostream& out) {
  try {
    const std::vector<std::string> arguments = joined(given);
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
  RunCommand run;
  Command chosen;
  CLI::App app("A wind tunnel for KV-cache policies and LLM schedulers", "kvlab");
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvlab " + program_version());
  add_run_command(app, run, [&] { chosen = [&run](std::ostream& out, std::ostream& err) { return run_experiment(run, out, err); }; });
  add_other_commands(app, chosen);
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
