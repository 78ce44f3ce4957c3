#include "app/runs/plan/engine_flags.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "app/results/run_folder.h"
#include "app/runs/sweep/experiment.h"
#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Fields as in the header.
struct FlagRule {
  std::string key, switched, otherwise, ignored, refused, above_one;
  bool has_values = false, takes_others = false, has_suffixes = false;
  double scale = 1;
  std::vector<std::string> times, over, names;
  std::map<std::string, std::string> values, with;
  std::string ranks_key;  // with several ranks
  std::map<std::string, std::string> ranks_values;
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
  Params ranks = p.optional_child("ranks", "'ranks'");
  rule.ranks_key = ranks.text("key", "", "path in the experiment");
  rule.ranks_values = read_flag_texts(ranks, "values");
  ranks.reject_unread();
  rule.above_one = p.text("above_one", "", "path of the value that must be above 1, else it changes nothing");
  rule.ignored = p.text("ignored", "", "why it changes nothing");
  rule.refused = p.text("refused", "", "why it is refused");
  p.reject_unread();
  if (rule.key.empty() && !rule.has_values && rule.ignored.empty() && rule.refused.empty())
    p.fail("a rule needs one of 'key', 'values', 'ignored', 'refused'");
  return rule;
}

// By reason.
void add_groups(Params groups, std::string FlagRule::*reason, FlagTable& table) {
  for (const std::string& why : groups.keys()) {
    FlagRule rule;
    rule.*reason = why;
    rule.names = groups.words(why, "options");
    table.rules.push_back(std::move(rule));
  }
}

FlagTable read_flag_table(const std::string& engine) {
  const std::string file = find_spec_file(engine, profiles_folder() + "/flags", "engine");
  Params p(load_config(file), std::make_shared<Choices>(), "options of '" + engine + "'");
  FlagTable table{p.text("engine", "the engine's name"), p.text("scheduler", "its scheduler"), {}};
  Params options = p.child("options", "options");
  for (const std::string& name : options.keys()) table.rules.push_back(read_rule(options.child(name, "option '" + name + "'"), name));
  add_groups(p.optional_child("ignored", "'ignored'"), &FlagRule::ignored, table);
  add_groups(p.optional_child("refused", "'refused'"), &FlagRule::refused, table);
  p.reject_unread();
  return table;
}

// `pattern` may be a prefix ending in '*'.
bool is_name(const std::string& name, const std::string& pattern) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

// Exact names win over prefixes.
const FlagRule* find_rule(const FlagTable& table, const std::string& name) {
  const FlagRule* found = nullptr;
  for (const FlagRule& rule : table.rules)
    for (const std::string& pattern : rule.names)
      if (is_name(name, pattern) && (found == nullptr || pattern == name)) found = &rule;
  return found;
}

// Disable an option, or leave it to the engine.
bool is_off(const std::string& value) {
  static const std::set<std::string> kOff = {"", "0", "0.0", "none", "None", "null", "false", "False", "off", "{}", "[]"};
  return kOff.contains(value);
}
bool is_default(const std::string& value) { return value == "auto" || value == "None" || value == "none" || value == "null"; }

// --no-NAME negates a switch.
const FlagRule& rule_of(const FlagTable& table, GivenOption& option) {
  if (const FlagRule* rule = find_rule(table, option.name)) return *rule;
  if (option.name.starts_with("no-")) {
    const FlagRule* rule = find_rule(table, option.name.substr(3));
    option.is_negated = rule != nullptr;
    if (rule != nullptr && (!rule->ignored.empty() || !rule->refused.empty() || !rule->switched.empty())) return *rule;
  }
  std::vector<std::string> known;
  for (const FlagRule& rule : table.rules)
    for (const std::string& one : rule.names)
      if (!one.ends_with('*')) known.push_back(one);
  const std::string meant = did_you_mean(option.name, known);
  throw InputError(
      fmt::format("{}: unknown option of {}{}", option.text, table.engine,
                  meant.empty() ? "; leave it out if it does not change what is computed, else write what it means with --set" : meant));
}

// Multiples of 1,000, of 1,024, of a million.
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

class FlagReader {
 public:
  FlagReader(FlagTable table, const std::shared_ptr<const ConfigFile>& config, std::string option)
      : table_(std::move(table)), config_(config), option_(std::move(option)) {}

  // Collects errors of a line.
  void read(GivenOption option) {
    try {
      read_valid(option);
    } catch (const InputError& e) {
      errors_.emplace_back(e.what());
    }
  }

  void read_environment(const std::string& assignment) {
    flags.remarks.push_back(fmt::format("{} is of the environment, which is not read", assignment));
  }

  // Factors last: their options may follow.
  void finish() {
    if (errors_.size() == 1) throw InputError(errors_.front());
    if (!errors_.empty()) throw InputError(fmt::format("{} options cannot be taken. {}", errors_.size(), join(errors_, ". ")));
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
    for (const Condition& one : conditions_) drop_unless_above_one(one);
    add_scheduler();
  }

  EngineFlags flags;

 private:
  struct Product {
    const FlagRule* rule;
    std::string value;
    std::size_t at;  // in overrides
  };

  void read_valid(GivenOption& option) {
    const FlagRule& found = rule_of(table_, option);
    const bool has_ranks = !found.ranks_key.empty() && value_at("parallel.dp", 1) > 1;
    const FlagRule& rule = has_ranks ? rules_of_ranks_.emplace_back(of_ranks(found)) : found;
    take_model(rule, option);
    if (!rule.refused.empty() && !option.is_negated && !(option.values.size() == 1 && is_off(option.values.front())))
      throw InputError(fmt::format("{}: {}", option.text, rule.refused));
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
    if (!rule.above_one.empty()) conditions_.push_back({&rule, flags.overrides.back(), flags.remarks.size() - 1, option.text});
    if (!rule.times.empty() || !rule.over.empty()) products_.push_back({&rule, value, flags.overrides.size() - 1});
  }

  static FlagRule of_ranks(FlagRule rule) {
    rule.key = rule.ranks_key;
    rule.values = rule.ranks_values;
    return rule;
  }

  // `vllm serve --max-num-seqs 8 org/model`: a path after an option's values.
  void take_model(const FlagRule& rule, GivenOption& option) {
    const std::size_t takes = rule.switched.empty() ? 1 : 0;
    const bool is_list = !rule.ignored.empty() || !rule.refused.empty();
    if (is_list || option.values.size() != takes + 1 || option.values.back().find('/') == std::string::npos) return;
    const std::string model = option.values.back();
    option.values.pop_back();
    option.text.resize(option.text.size() - model.size() - 1);
    read({"model", false, {model}, model});
  }

  // Depends on another setting, which may follow.
  struct Condition {
    const FlagRule* rule;
    std::string override_text;
    std::size_t remark;  // in remarks
    std::string text;
  };

  void drop_unless_above_one(const Condition& one) {
    const std::string& path = one.rule->above_one;
    if (value_at(path, 1) > 1) return;
    std::erase(flags.overrides, one.override_text);
    flags.remarks[one.remark] = fmt::format("{} of {} changes nothing: it needs '{}' above 1", one.text, table_.engine, path);
  }

  void remark(const GivenOption& option, const std::string& text) {
    flags.remarks.push_back(fmt::format("{} of {} {}", option.text, table_.engine, text));
  }

  // `--enable-prefix-caching`; older versions add true or false.
  [[nodiscard]] static std::string switched_value(const FlagRule& rule, const GivenOption& option) {
    static const std::map<std::string, bool> kWords = {{"true", true}, {"True", true}, {"false", false}, {"False", false}};
    bool is_on = !option.is_negated;
    if (!option.values.empty()) {
      const auto word = kWords.find(option.values.front());
      if (option.values.size() > 1 || word == kWords.end()) throw InputError(option.text + ": this option takes no value");
      is_on = is_on == word->second;
    }
    if (is_on) return rule.switched;
    const bool is_flag = rule.switched == "true" || rule.switched == "false";
    return is_flag ? (rule.switched == "true" ? "false" : "true") : "";
  }

  [[nodiscard]] std::string value_of(const FlagRule& rule, const GivenOption& option) const {
    if (!rule.switched.empty()) return switched_value(rule, option);
    if (option.values.size() != 1) throw InputError(option.text + ": this option takes one value");
    const std::string& given = option.values.front();
    if (given.find('$') != std::string::npos) throw InputError(option.text + ": write the value of this shell variable");
    if (is_default(given) && !rule.values.contains(given)) return "";
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

  std::string set(const std::string& key, const std::string& value) {
    if (key.starts_with("scheduler.")) {
      scheduler_[key.substr(10)] = value;
      return fmt::format("scheduler.{}.{}={}", table_.scheduler, key.substr(10), value);
    }
    flags.overrides.push_back(key + "=" + value);
    const YAML::Node before = node_at(config_->root, key);
    if (!before.IsDefined() || !before.IsScalar() || before.Scalar() == value) return flags.overrides.back();
    return fmt::format("{} (the experiment has {})", flags.overrides.back(), before.Scalar());
  }

  [[nodiscard]] double value_at(const std::string& path, double fallback) const {
    double value = fallback;
    bool is_set = false;
    for (const std::string& set : flags.overrides)
      if (set.starts_with(path + "=")) is_set = parse_real(set.substr(path.size() + 1), value);
    const YAML::Node node = node_at(config_->root, path);
    if (is_set || !node.IsDefined()) return value;
    if (!node.IsScalar() || !parse_real(node.Scalar(), value))
      throw InputError(
          fmt::format("'{}' is no single number in the experiment, and an option is scaled by it: add --set {}=N", path, path));
    return value;
  }

  // In a list: on elements that name the engine's scheduler.
  void add_scheduler() {
    if (scheduler_.empty()) return;
    const YAML::Node node = node_at(config_->root, "scheduler");
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
  std::deque<FlagRule> rules_of_ranks_;
  std::shared_ptr<const ConfigFile> config_;
  std::string option_;
  std::map<std::string, std::string> scheduler_;
  std::vector<Product> products_;
  std::vector<Condition> conditions_;
  std::vector<std::string> errors_;
};

}  // namespace

EngineFlags read_engine_flags(const std::string& engine, const std::string& text, const std::string& experiment,
                              const std::vector<std::string>& set) {
  const std::string file = find_experiment(experiment);
  const std::string option = "--" + engine + "-args";
  FlagReader reader(read_flag_table(engine), parse_config(read_file(file), file, set), option);
  try {
    EngineCommandLine line = parse_engine_line(text);
    for (const std::string& assignment : line.environment) reader.read_environment(assignment);
    for (GivenOption& given : line.options) reader.read(std::move(given));
    reader.finish();
  } catch (const InputError& e) {
    const std::string message = e.what();
    throw InputError(message.starts_with(option) ? message : option + ": " + message);
  }
  return std::move(reader.flags);
}

}  // namespace kvlab
