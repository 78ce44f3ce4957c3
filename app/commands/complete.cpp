#include "app/commands/complete.h"

#include <algorithm>
#include <set>

namespace kvlab {

namespace {

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
      if (found.candidates.empty() && found.files.empty() && typed.empty() && !takes_argument()) add_options(found);
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

  // Null if none. A command's last argument may repeat.
  [[nodiscard]] CLI::Option* next_argument(bool& is_first) const {
    std::size_t num_before = 0;
    for (CLI::Option* option : options_) {
      if (!option->get_positional()) continue;
      is_first = num_before == arguments_.size();
      if (is_first || may_be_repeated(*option)) return option;
      ++num_before;
    }
    return nullptr;
  }

  [[nodiscard]] bool takes_argument() const {
    bool is_first = false;
    return next_argument(is_first) != nullptr;
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
    bool is_first = false;
    if (CLI::Option* const argument = next_argument(is_first)) add_values(*argument, typed, is_first, found);
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
