#include "app/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>

#include "app/commands/command.h"
#include "app/results/results.h"
#include "base/message.h"
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

// CLI11 only names a missing command or option; this also names the nearest.
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

// Only the flush notices a full disk.
void require_written(std::ostream& out) {
  errno = 0;
  if (out.flush()) return;
  throw std::runtime_error(std::string("standard output cannot be written") + (errno == 0 ? "" : std::string(": ") + std::strerror(errno)));
}

bool is_engine_option(const std::string& word) { return word == "--vllm-args" || word == "--sglang-args"; }

// Values of --vllm-args and --sglang-args begin with dashes.
std::vector<std::string> joined(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  bool takes_value = false, took_option = false, is_rest = false;
  for (const std::string& word : arguments) {
    is_rest = is_rest || (word == "--" && !takes_value);
    if (is_rest) {
      words.push_back(word);
      continue;
    }
    if (!takes_value && word.starts_with("--") && word.ends_with('=') && !is_engine_option(word.substr(0, word.size() - 1)))
      throw InputError(word + " has no value after the '='");
    if (took_option && word.find_first_not_of("0123456789.") == std::string::npos)
      throw InputError("the options of an engine are one argument, in quotes: " + words.back().substr(0, words.back().find('=')) + " '" +
                       words.back().substr(words.back().find('=') + 1) + " " + word + "'");
    if (!takes_value && word.ends_with('=') && is_engine_option(word.substr(0, word.size() - 1)))
      words.push_back(word + " ");
    else if (takes_value)
      words.back() += "=" + (word.empty() ? " " : word);  // else CLI11 takes the next argument as the value
    else
      words.push_back(word);
    took_option = takes_value && word.starts_with("--") && word.find_first_of(" =") == std::string::npos;
    takes_value = !takes_value && is_engine_option(word);
  }
  return words;
}

// CLI11 would misread hexadecimal, octal, separators, nan, more than 63 bits. type: INT, UINT or FLOAT.
std::string strict_number(const std::string& text, const std::string& type) {
  long long whole = 0;
  double value = 0;
  const bool is_real = type.starts_with("FLOAT"), is_unsigned = type.starts_with("UINT");
  if (is_real ? parse_real(text, value) : parse_integer(text, whole) && (whole >= 0 || !is_unsigned)) return "";
  return fmt::format("'{}' is not a {}", text, is_real ? "number" : is_unsigned ? "whole number from 0" : "whole number");
}

void require_strict_numbers(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT"))
      option->check([type](const std::string& text) { return strict_number(text, type); });
  }
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) require_strict_numbers(*command);
}

// Instead of CLI11's "At Most 1 required but received 2".
std::string plain_words(const std::string& message) {
  const std::size_t at = message.find(": At Most 1 required but received ");
  if (at == std::string::npos) return message;
  return fmt::format("{} takes one value and was given {} times", message.substr(0, at), message.substr(message.rfind(' ') + 1));
}

// Returns the exit status, or -1 if a command was chosen.
int parse(CLI::App& app, const std::vector<std::string>& given, std::ostream& out) {
  try {
    const std::vector<std::string> arguments = joined(given);
    check_words(app, arguments);
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 reads from the back
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
    throw InputError(plain_words(one_line(e.what())) + " (kvlab --help shows what there is)");
  }
  return -1;
}

}  // namespace

int run_cli(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  Command chosen;
  CLI::App app("A wind tunnel for KV-cache policies and LLM schedulers", "kvlab");
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvlab " + program_version());
  add_run_command(app, chosen);
  add_other_commands(app, chosen);
  require_strict_numbers(app);
  try {
    const int status = parse(app, arguments, out);
    const int done = status >= 0 ? status : chosen(out, err);
    require_written(out);
    return done;
  } catch (const InputError& e) {
    err << "kvlab: " << message_of(e) << "\n";
    return 2;
  } catch (const std::exception& e) {
    err << "kvlab: " << message_of(e) << "\n";
    return 1;
  }
}

}  // namespace kvlab
