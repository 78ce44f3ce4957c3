#include <algorithm>
#include <filesystem>
#include <set>

#include "app/commands/command.h"
#include "app/commands/describe.h"
#include "app/results/results_info.h"
#include "app/runs/report/known_metrics.h"
#include "app/schema/schema.h"
#include "base/csv.h"
#include "base/error.h"
#include "traces/public_traces.h"

namespace kvlab {

namespace {

Offered declared_by(const std::string& name) {
  std::size_t end = 0;
  const std::string declaration = name.substr(std::string(kOffersPrefix).size());
  const int source = std::stoi(declaration, &end);
  return {static_cast<Offer>(source), declaration.substr(end + 1)};
}

// CLI::IsMember's description is "{cpu,cuda}".
bool is_word_set(const std::string& description) { return description.starts_with('{') && description.ends_with('}'); }

std::string words_of_set(std::string description) {
  std::replace(description.begin(), description.end(), ',', ' ');
  return description.substr(1, description.size() - 2);
}

struct WordsBefore {
  std::vector<std::string> arguments;  // without options
  bool is_first_value = true;          // of the option or argument
};

using OfferedWords = std::vector<OfferedWord>;

void add_items(const std::string& kind, const std::string& only, OfferedWords& all) {
  for (const Item& item : list_items(kind))
    if (only.empty() || item.kind == only) all.push_back({item.name, item.summary});
}

void add_names_of(const std::string& kind, OfferedWords& all) {
  if (kind == "recipes") {
    add_items("kv", "recipe", all);
  } else if (kind == "public_traces") {
    for (const PublicTrace& trace : read_public_traces(public_traces_list())) all.push_back({trace.name, trace.title});
  } else {
    add_items(kind, "", all);
  }
}

void add_results_folders(const std::string& before, OfferedWords& all) {
  for (const std::filesystem::path& folder : results_in(kResultsRoot).folders) all.push_back({before + folder.filename().string(), ""});
}

CsvTable summary_of(const WordsBefore& before) {
  if (before.arguments.empty()) throw InputError("no results folder is named yet");
  return read_csv(std::filesystem::path(before.arguments[0]) / "summary.csv");
}

// Between `run` and `seed` of summary.csv.
std::vector<std::size_t> axes_in(const CsvTable& summary) {
  std::vector<std::size_t> axes;
  for (std::size_t c = 1; c < summary.at("seed"); ++c) axes.push_back(c);
  return axes;
}

void add_column_names(const CsvTable& summary, bool of_axes, OfferedWords& all) {
  const std::size_t seed = summary.at("seed");
  for (std::size_t c = of_axes ? 1 : seed + 1; c < (of_axes ? seed : summary.columns.size()); ++c) all.push_back({summary.columns[c], ""});
}

// AXIS=, then AXIS=VALUE once an axis is typed.
void add_axis_values(const CsvTable& summary, const std::string& typed, OfferedWords& all) {
  const std::size_t equals = typed.find('=');
  for (const std::size_t axis : axes_in(summary)) {
    const std::string& name = summary.columns[axis];
    if (equals == std::string::npos) all.push_back({name + "=", ""});
    if (equals == std::string::npos || name != typed.substr(0, equals)) continue;
    std::set<std::string> values;
    for (const auto& row : summary.rows) values.insert(row[axis]);
    for (const std::string& value : values) all.push_back({name + "=" + value, ""});
  }
}

void add_run_ids(const CsvTable& summary, OfferedWords& all) {
  for (const auto& row : summary.rows) {
    std::string labels;
    for (const std::size_t axis : axes_in(summary)) labels += (labels.empty() ? "" : ", ") + row[axis];
    all.push_back({row[summary.at("run")], labels});
  }
}

void add_source(const Offered& offered, const std::string& typed, const WordsBefore& before, Completion& completion) {
  OfferedWords& all = completion.candidates;
  if (offered.source == Offer::kFiles) completion.files = "files";
  if (offered.source == Offer::kYamlFiles) completion.files = "yaml";
  if (offered.source == Offer::kFolders || offered.source == Offer::kResults) completion.files = "folders";
  switch (offered.source) {
    case Offer::kNames:
      for (const std::string& kind : words_in(offered.of)) add_names_of(kind, all);
      return;
    case Offer::kWords:
      if (before.is_first_value)
        for (const std::string& word : words_in(offered.of)) all.push_back({word, ""});
      return;
    case Offer::kResults:
      return add_results_folders(std::string(kResultsRoot) + "/", all);
    case Offer::kResultNames:
      return add_results_folders("", all);
    case Offer::kSettings:
      for (const auto& [word, help] : setting_words(offered.of, typed)) all.push_back({word, help});
      return;
    case Offer::kAxes:
      return add_column_names(summary_of(before), true, all);
    case Offer::kMetrics:
      return add_column_names(summary_of(before), false, all);
    case Offer::kAxisValues:
      return add_axis_values(summary_of(before), typed, all);
    case Offer::kRuns:
      return add_run_ids(summary_of(before), all);
    default:
      return;
  }
}

// An unreadable source has no candidates.
void add_offered(const Offered& offered, const std::string& typed, const WordsBefore& before, Completion& completion) {
  try {
    add_source(offered, typed, before, completion);
  } catch (const InputError&) {  // unreadable file or no results folder: shells show no errors
  }
}

bool is_shown_command(const CLI::App* app) { return !app->get_name().empty() && !app->get_group().empty(); }

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }
bool may_be_repeated(const CLI::Option& option) { return option.get_items_expected_max() > 1; }
bool takes_more_values(const CLI::Option& option) { return may_be_repeated(option) && option.get_allow_extra_args(); }

// Without the groups' --help.
void add_options_of(CLI::App& app, std::vector<CLI::Option*>& all) {
  for (CLI::Option* option : app.get_options())
    if (!app.get_name().empty() || option != app.get_help_ptr()) all.push_back(option);
  for (CLI::App* group : app.get_subcommands([](const CLI::App* c) { return c->get_name().empty(); })) add_options_of(*group, all);
}

// Parses as CLI11 does, without values and checks.
class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : at_(&app) { find_options(); }

  void read(const std::string& word) {
    if (awaits_value(word)) {
      has_value_ = true;
      if (!takes_more_values(*open_)) open_ = nullptr;
      return;
    }
    open_ = nullptr;
    if (!only_arguments_ && word == "--")
      only_arguments_ = true;
    else if (!only_arguments_ && word.starts_with("-"))
      read_option(word);
    else
      read_argument(word);
  }

  [[nodiscard]] Completion complete(const std::string& typed) {
    Completion found;
    if (awaits_value(typed)) {
      add_values(*open_, typed, !has_value_, found);
    } else if (!only_arguments_ && typed.starts_with("--") && typed.find('=') != std::string::npos) {
      add_joined_values(typed, found);
    } else if (!only_arguments_ && typed.starts_with("-")) {
      add_options(found);
    } else {
      add_commands_and_arguments(typed, found);
      if (found.candidates.empty() && found.files.empty() && typed.empty() && next_argument().first == nullptr) add_options(found);
    }
    return found;
  }

 private:
  // The first value may be any word, later ones may not be options.
  [[nodiscard]] bool awaits_value(const std::string& word) const { return open_ != nullptr && (!has_value_ || !word.starts_with("-")); }

  void find_options() {
    options_.clear();
    add_options_of(*at_, options_);
  }

  [[nodiscard]] CLI::Option* option_named(const std::string& word) const {
    const std::string name = word.substr(0, word.find('='));
    for (CLI::Option* option : options_)
      if (!option->get_positional() && option->check_name(name)) return option;
    return nullptr;
  }

  void read_option(const std::string& word) {
    CLI::Option* const option = option_named(word);
    if (option == nullptr) return;
    used_.insert(option);
    if (!takes_value(*option)) return;
    has_value_ = word.find('=') != std::string::npos;
    if (!has_value_ || takes_more_values(*option)) open_ = option;
  }

  void read_argument(const std::string& word) {
    for (CLI::App* command : at_->get_subcommands([](const CLI::App* c) { return !c->get_name().empty(); })) {
      if (only_arguments_ || command->get_name() != word) continue;
      at_ = command;
      find_options();
      used_.clear();
      arguments_.clear();
      return;
    }
    arguments_.push_back(word);
  }

  // Null if none, and whether it has no value yet. A command's last argument may repeat.
  [[nodiscard]] std::pair<CLI::Option*, bool> next_argument() const {
    std::size_t num_before = 0;
    for (CLI::Option* option : options_) {
      if (!option->get_positional()) continue;
      const bool is_first = num_before++ == arguments_.size();
      if (is_first || may_be_repeated(*option)) return {option, is_first};
    }
    return {nullptr, false};
  }

  void add_values(CLI::Option& option, const std::string& typed, bool is_first, Completion& found) const {
    for (const Offered& offered : offers_of(option)) add_offered(offered, typed, {arguments_, is_first}, found);
  }

  void add_joined_values(const std::string& typed, Completion& found) const {
    CLI::Option* const option = option_named(typed);
    if (option == nullptr || !takes_value(*option)) return;
    const std::size_t begin = typed.find('=') + 1;
    add_values(*option, typed.substr(begin), true, found);
    for (OfferedWord& candidate : found.candidates) candidate.word.insert(0, typed, 0, begin);
  }

  // Neither used (unless repeatable) nor excluded by a used option.
  [[nodiscard]] bool may_follow(CLI::Option& option) const {
    if (used_.contains(&option) && !may_be_repeated(option)) return false;
    return std::none_of(used_.begin(), used_.end(), [&](CLI::Option* used) { return used->get_excludes().contains(&option); });
  }

  void add_options(Completion& found) const {
    for (CLI::Option* option : options_) {
      if (option->get_positional() || !may_follow(*option)) continue;
      for (const std::string& name : option->get_lnames()) found.candidates.push_back({"--" + name, option->get_description()});
    }
  }

  void add_commands_and_arguments(const std::string& typed, Completion& found) {
    if (!only_arguments_)
      for (const CLI::App* command : at_->get_subcommands(is_shown_command))
        found.candidates.push_back({command->get_name(), command->get_description()});
    if (const auto [argument, is_first] = next_argument(); argument != nullptr) add_values(*argument, typed, is_first, found);
  }

  CLI::App* at_;
  std::vector<CLI::Option*> options_;  // of at_
  std::set<CLI::Option*> used_;
  std::vector<std::string> arguments_;
  CLI::Option* open_ = nullptr;  // option that may take the next word
  bool has_value_ = false;       // open_ has a value
  bool only_arguments_ = false;  // after "--"
};

std::string one_line_of(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return text;
}

}  // namespace

std::vector<Offered> offers_of(CLI::Option& option) {
  std::vector<Offered> all;
  try {
    for (int i = 0;; ++i) {
      const CLI::Validator& check = *option.get_validator(i);
      if (check.get_name().starts_with(kOffersPrefix)) all.push_back(declared_by(check.get_name()));
      if (const std::string set = check.get_description(); is_word_set(set)) all.push_back({Offer::kWords, words_of_set(set)});
    }
  } catch (const CLI::OptionNotFound&) {  // past the last one
  }
  if (all.empty() && option.get_type_name().starts_with("TEXT")) all.push_back({Offer::kFiles, ""});
  return all;
}

Completion completion_of(CLI::App& app, const std::vector<std::string>& words) {
  CommandLine line(app);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) line.read(words[i]);
  return line.complete(words.empty() ? "" : words.back());
}

std::string completion_as_text(const Completion& completion) {
  std::string text;
  for (const OfferedWord& candidate : completion.candidates) text += candidate.word + "\t" + one_line_of(candidate.help) + "\n";
  return text + (completion.files.empty() ? "" : ":" + completion.files + "\n");
}

}  // namespace kvlab
