#include "app/runs/engine_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "app/runs/experiment.h"
#include "base/params.h"
#include "base/read_file.h"
#include "base/spec_file.h"
#include "base/text.h"
#include "base/yaml_line.h"

namespace kvlab {

namespace {

// The meaning of an option; the fields are those of the header.
struct FlagRule {
  std::string key, switched, otherwise, ignored, refused;
  bool has_values = false, takes_others = false, has_suffixes = false;
  double scale = 1;
  std::vector<std::string> times, over, names;
  std::map<std::string, std::string> values, with;
};

struct FlagTable {
  std::string engine, scheduler;
  std::vector<FlagRule> rules;
};

std::map<std::string, std::string> read_flag_texts(Params& p, const std::string& key) {
  Params all = p.optional_child(key, key);
  std::map<std::string, std::string> texts;
  for (const std::string& name : all.keys()) texts[name] = all.text(name, "the text that it replaces");
  return texts;
}

FlagRule read_rule(Params p, const std::string& name) {
  FlagRule rule;
  rule.key = p.text("key", "", "path in the experiment");
  rule.switched = p.text("switch", "", "value of an option without one");
  rule.has_values = p.has("values");
  rule.values = read_flag_texts(p, "values");
  rule.takes_others = p.flag("takes_others", false, "values that are not listed are taken as they are");
  rule.otherwise = p.text("otherwise", "", "why other values are refused");
  rule.has_suffixes = p.flag("suffixes", false, "k, K, m and M may follow a number");
  rule.scale = p.optional<double>("scale", 1, 1e-12, 1e12, "factor of the value");
  if (p.has("times")) rule.times = p.words("times", "paths of further factors");
  if (p.has("over")) rule.over = p.words("over", "paths of divisors");
  if (p.has("also")) rule.names = p.words("also", "other names");
  rule.names.insert(rule.names.begin(), name);
  rule.with = read_flag_texts(p, "with");
  rule.ignored = p.text("ignored", "", "why it changes nothing");
  rule.refused = p.text("refused", "", "why it is refused");
  p.reject_unread();
  if (rule.key.empty() && !rule.has_values && rule.ignored.empty() && rule.refused.empty())
    p.fail("a rule needs one of 'key', 'values', 'ignored', 'refused'");
  return rule;
}

FlagTable read_flag_table(const std::string& engine) {
  const std::string file = find_spec_file(engine, profiles_folder() + "/flags", "engine");
  Params p(load_config(file), std::make_shared<Choices>(), "options of '" + engine + "'");
  FlagTable table{p.text("engine", "the engine's name"), p.text("scheduler", "its scheduler"), {}};
  Params options = p.child("options", "options");
  for (const std::string& name : options.keys()) table.rules.push_back(read_rule(options.child(name, "option '" + name + "'"), name));
  p.reject_unread();
  return table;
}

// The words of a command line; quotes keep blanks in one.
std::vector<std::string> command_words(const std::string& text) {
  std::vector<std::string> words;
  char quote = 0;
  bool is_inside = false;
  for (const char c : text) {
    if (quote != 0 ? c == quote : c == '"' || c == '\'') {
      quote = quote != 0 ? '\0' : c;
      if (!is_inside) words.emplace_back();
      is_inside = true;
    } else if (quote == 0 && (std::isspace(static_cast<unsigned char>(c)) != 0 || c == '\\')) {
      is_inside = false;
    } else {
      if (!is_inside) words.emplace_back();
      is_inside = true;
      words.back() += c;
    }
  }
  if (quote != 0) throw InputError(fmt::format("a quote {} is not closed: {}", quote, text));
  return words;
}

struct GivenOption {
  std::string name;  // "max-num-seqs", without "no-"
  bool is_negated = false;
  std::vector<std::string> values;
  std::string text;  // as given
};

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[word[1] == '-' ? 2 : 1])) != 0;
}

std::vector<GivenOption> given_options(const std::string& text) {
  std::vector<std::string> words = command_words(text);
  const auto serve = std::find(words.begin(), words.end(), "serve");
  const auto first = std::find_if(words.begin(), words.end(), is_option);
  if (serve < first) words.erase(words.begin(), serve + 1);
  std::vector<GivenOption> options;
  for (const std::string& word : words) {
    if (options.empty() && !is_option(word)) {
      options.push_back({"model", false, {word}, word});
    } else if (is_option(word)) {
      const std::size_t equals = word.find('=');
      GivenOption option{word.substr(word.find_first_not_of('-')), false, {}, word};
      option.name = option.name.substr(0, option.name.find('='));
      std::replace(option.name.begin(), option.name.end(), '_', '-');
      if (equals != std::string::npos) option.values.push_back(word.substr(equals + 1));
      options.push_back(std::move(option));
    } else {
      options.back().values.push_back(word);
      options.back().text += " " + word;
    }
  }
  return options;
}

const FlagRule* find_rule(const FlagTable& table, const std::string& name) {
  const auto found = std::find_if(table.rules.begin(), table.rules.end(), [&](const FlagRule& rule) {
    return std::find(rule.names.begin(), rule.names.end(), name) != rule.names.end();
  });
  return found == table.rules.end() ? nullptr : &*found;
}

// The rule of an option; --no-NAME negates a switch.
const FlagRule& rule_of(const FlagTable& table, GivenOption& option) {
  if (const FlagRule* rule = find_rule(table, option.name)) return *rule;
  if (option.name.starts_with("no-")) {
    const FlagRule* rule = find_rule(table, option.name.substr(3));
    option.is_negated = rule != nullptr;
    if (rule != nullptr && (!rule->ignored.empty() || !rule->refused.empty() || !rule->switched.empty())) return *rule;
  }
  std::vector<std::string> known;
  for (const FlagRule& rule : table.rules) known.insert(known.end(), rule.names.begin(), rule.names.end());
  const std::string meant = did_you_mean(option.name, known);
  throw InputError(
      fmt::format("{}: unknown option of {}{}", option.text, table.engine,
                  meant.empty() ? "; leave it out if it does not change what is computed, else write what it means with --set" : meant));
}

// "8k", "8K", "2m": thousands, 1,024s, millions.
double number_with_suffix(std::string text, bool has_suffixes, const std::string& option) {
  double factor = 1, value = 0;
  static const std::map<char, double> kSuffixes = {{'k', 1e3}, {'K', 1024}, {'m', 1e6}, {'M', 1024.0 * 1024}};
  if (has_suffixes && !text.empty() && kSuffixes.contains(text.back())) {
    factor = kSuffixes.at(text.back());
    text.pop_back();
  }
  if (!parse_real(text, value)) throw InputError(option + ": not a number");
  return value * factor;
}

// Translates the options of one command line, one after the other.
class FlagReader {
 public:
  FlagReader(FlagTable table, const std::shared_ptr<const ConfigFile>& config, std::string option)
      : table_(std::move(table)), config_(config), option_(std::move(option)) {}

  void read(GivenOption option) {
    const FlagRule& rule = rule_of(table_, option);
    if (!rule.refused.empty() && !option.is_negated) throw InputError(fmt::format("{}: {}", option.text, rule.refused));
    if (!rule.refused.empty() || !rule.ignored.empty()) {
      remark(option, "changes nothing: " + (rule.ignored.empty() ? "it is never on" : rule.ignored));
      return;
    }
    const std::string value = value_of(rule, option);
    if (value.empty() || rule.key.empty()) {
      remark(option, "changes nothing: it is so anyway");
      return;
    }
    std::string text = set(rule.key, value);
    for (const auto& [key, further] : rule.with) text += " and " + set(key, further);
    remark(option, "sets " + text);
    if (!rule.times.empty() || !rule.over.empty()) products_.push_back({&rule, value, flags.overrides.size() - 1});
  }

  // Factors may be given after the option that they multiply.
  void finish() {
    for (const Product& product : products_) {
      double value = number_with_suffix(product.value, false, product.rule->names.front());
      for (const std::string& path : product.rule->times) value *= value_at(path, 1);
      for (const std::string& path : product.rule->over) value = std::floor(value / value_at(path, 16));
      std::string& text = flags.overrides[product.at];
      const std::string before = text;
      text = text.substr(0, text.find('=') + 1) + fmt::format("{:.0f}", value);
      for (std::string& line : flags.remarks)
        if (const std::size_t at = line.find(before); at != std::string::npos) line.replace(at, before.size(), text);
    }
    add_scheduler();
  }

  EngineFlags flags;

 private:
  struct Product {
    const FlagRule* rule;
    std::string value;
    std::size_t at;  // in overrides
  };

  void remark(const GivenOption& option, const std::string& text) {
    flags.remarks.push_back(fmt::format("{} of {} {}", option.text, table_.engine, text));
  }

  [[nodiscard]] std::string value_of(const FlagRule& rule, const GivenOption& option) const {
    if (!rule.switched.empty()) {
      if (!option.values.empty()) throw InputError(option.text + ": this option takes no value");
      const bool is_flag = rule.switched == "true" || rule.switched == "false";
      if (!option.is_negated) return rule.switched;
      return is_flag ? (rule.switched == "true" ? "false" : "true") : "";
    }
    if (option.values.size() != 1) throw InputError(option.text + ": this option takes one value");
    const std::string& given = option.values.front();
    if (const auto known = rule.values.find(given); known != rule.values.end()) return known->second;
    if (rule.has_values && !rule.takes_others) {
      std::vector<std::string> names;
      for (const auto& [name, value] : rule.values) names.push_back(name);
      throw InputError(fmt::format("{}: of its values {} can be simulated{}", option.text, join(names, ", "),
                                   rule.otherwise.empty() ? "" : "; " + rule.otherwise));
    }
    if (rule.scale == 1 && !rule.has_suffixes) return given;
    return fmt::format("{:.0f}", number_with_suffix(given, rule.has_suffixes, option.text) * rule.scale);
  }

  // Notes the setting; returns its text for the remark.
  std::string set(const std::string& key, const std::string& value) {
    if (key.starts_with("scheduler.")) {
      scheduler_[key.substr(10)] = value;
      return fmt::format("scheduler.{}.{}={}", table_.scheduler, key.substr(10), value);
    }
    flags.overrides.push_back(key + "=" + value);
    const YAML::Node before = node_at(key);
    if (!before.IsDefined() || !before.IsScalar() || before.Scalar() == value) return flags.overrides.back();
    return fmt::format("{} (the experiment has {})", flags.overrides.back(), before.Scalar());
  }

  [[nodiscard]] YAML::Node node_at(const std::string& path) const {
    YAML::Node node;
    node.reset(config_->root);
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find('.', begin), path.size());
      if (!node.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
      const YAML::Node below = std::as_const(node)[path.substr(begin, end - begin)];
      if (!below.IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
      node.reset(below);
      begin = end + 1;
    }
    return node;
  }

  [[nodiscard]] double value_at(const std::string& path, double fallback) const {
    double value = fallback;
    bool is_set = false;
    for (const std::string& set : flags.overrides)
      if (set.starts_with(path + "=")) is_set = parse_real(set.substr(path.size() + 1), value);
    const YAML::Node node = node_at(path);
    if (is_set || !node.IsDefined()) return value;
    if (!node.IsScalar() || !parse_real(node.Scalar(), value))
      throw InputError(
          fmt::format("'{}' is no single number in the experiment, and an option is scaled by it: add --set {}=N", path, path));
    return value;
  }

  // The engine's scheduler with the options; of a list those elements that name it.
  void add_scheduler() {
    if (scheduler_.empty()) return;
    const YAML::Node node = node_at("scheduler");
    if (!node.IsDefined() || !node.IsSequence()) {
      if (node.IsDefined() && name_in(node) != table_.scheduler) fail_scheduler(name_in(node));
      for (const auto& [key, value] : scheduler_)
        flags.overrides.push_back(fmt::format("scheduler.{}.{}={}", table_.scheduler, key, value));
      return;
    }
    YAML::Node list(YAML::NodeType::Sequence);
    bool is_there = false;
    for (const auto& item : node) {
      const bool is_ours = name_in(item) == table_.scheduler;
      list.push_back(is_ours ? with_options(item) : YAML::Clone(item));
      is_there = is_there || is_ours;
    }
    if (!is_there) fail_scheduler("a list without it");
    flags.overrides.push_back("scheduler=" + yaml_on_one_line(list));
  }

  static std::string name_in(const YAML::Node& node) {
    return node.IsScalar() ? node.Scalar() : node.IsMap() && node.size() == 1 ? node.begin()->first.Scalar() : "";
  }

  [[nodiscard]] YAML::Node with_options(const YAML::Node& item) const {
    YAML::Node parameters(YAML::NodeType::Map);
    if (item.IsMap() && item.begin()->second.IsMap()) parameters = YAML::Clone(item.begin()->second);
    for (const auto& [key, value] : scheduler_) parameters[key] = value;
    YAML::Node named(YAML::NodeType::Map);
    named[table_.scheduler] = parameters;
    return named;
  }

  [[noreturn]] void fail_scheduler(const std::string& found) const {
    throw InputError(fmt::format("{}: these options are of scheduler '{}', and the experiment's is {}: add --set scheduler={}", option_,
                                 table_.scheduler, found.empty() ? "another" : "'" + found + "'", table_.scheduler));
  }

  FlagTable table_;
  std::shared_ptr<const ConfigFile> config_;
  std::string option_;
  std::map<std::string, std::string> scheduler_;
  std::vector<Product> products_;
};

}  // namespace

std::vector<std::string> flag_engines() { return yaml_names(profiles_folder() + "/flags"); }

EngineFlags read_engine_flags(const std::string& engine, const std::string& text, const std::string& experiment,
                              const std::vector<std::string>& set) {
  const std::string file = find_experiment(experiment);
  const std::string option = "--" + engine + "-args";
  FlagReader reader(read_flag_table(engine), parse_config(read_file(file), file, set), option);
  try {
    for (GivenOption& given : given_options(text)) reader.read(std::move(given));
    reader.finish();
  } catch (const InputError& e) {
    const std::string message = e.what();
    throw InputError(message.starts_with(option) ? message : option + ": " + message);
  }
  return std::move(reader.flags);
}

}  // namespace kvlab
