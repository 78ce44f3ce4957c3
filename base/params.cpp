#include "base/params.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"

namespace kvlab {

namespace {

constexpr int kMaxDepth = 64;

std::string place(const std::string& file, const YAML::Mark& mark) {
  if (mark.is_null()) return file;
  return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

// yaml-cpp keeps both of two equal keys and answers with the first, so a file that says a thing twice must be refused here.
void check_tree(const YAML::Node& node, const std::string& file, int depth) {
  if (depth > kMaxDepth) throw InputError(place(file, node.Mark()) + ": nested deeper than " + std::to_string(kMaxDepth) + " levels");
  if (node.IsSequence()) {
    for (const auto& item : node) check_tree(item, file, depth + 1);
  } else if (node.IsMap()) {
    std::set<std::string> seen;
    for (const auto& item : node) {
      if (!item.first.IsScalar()) throw InputError(place(file, item.first.Mark()) + ": a key must be a plain word");
      if (!seen.insert(item.first.Scalar()).second) {
        throw InputError(place(file, item.first.Mark()) + ": key '" + item.first.Scalar() + "' appears twice");
      }
      check_tree(item.second, file, depth + 1);
    }
  }
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// Writes the value of "a.b=value" into the tree. A scalar on the way ("scheduler: sarathi") becomes {sarathi: {}}.
void apply_override(ConfigFile& config, const std::string& text) {
  const std::string origin = "--set " + text;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) throw InputError(origin + ": expected --set key.key=value");
  const std::string path = text.substr(0, equals);
  YAML::Node value;
  try {
    value = YAML::Load(text.substr(equals + 1));
  } catch (const YAML::Exception& e) {
    throw InputError(origin + ": " + e.msg);
  }
  check_tree(value, origin, 0);
  const std::vector<std::string> keys = split(path, '.');
  if (keys.empty() || path.ends_with('.') || std::find(keys.begin(), keys.end(), "") != keys.end())
    throw InputError(origin + ": expected --set key.key=value");
  YAML::Node at = config.root;
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    YAML::Node next = at[keys[i]];
    if (next.IsSequence()) throw InputError(origin + ": '" + keys[i] + "' is a list in " + config.name + "; set the whole list");
    if (next.IsDefined() && next.IsScalar()) {
      YAML::Node map(YAML::NodeType::Map);
      map[next.Scalar()] = YAML::Node(YAML::NodeType::Map);
      at[keys[i]] = map;
      next.reset(at[keys[i]]);
    } else if (!next.IsDefined() || next.IsNull()) {
      at[keys[i]] = YAML::Node(YAML::NodeType::Map);
      next.reset(at[keys[i]]);
    }
    at.reset(next);
  }
  at[keys.back()] = value;
  config.set_by[path] = origin;
}

// Takes no notice of what it is told.
class NoEvents final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Not by YAML::LoadAll, which never ends on some texts that are no YAML ("," in yaml-cpp 0.7).
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents nothing;
  return parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing);
}

std::shared_ptr<const ConfigFile> parse_checked(const std::string& text, const std::string& name,
                                                const std::vector<std::string>& overrides) {
  auto config = std::make_shared<ConfigFile>();
  config->name = name;
  if (text.find('\0') != std::string::npos) throw InputError(name + ": not a text file (it holds a zero byte)");
  try {
    config->root = YAML::Load(text);
    if (config->root.IsMap() && has_second_document(text)) throw InputError(name + ": holds more than one YAML document; one is expected");
  } catch (const YAML::Exception& e) {
    throw InputError(place(name, e.mark) + ": " + e.msg);
  }
  if (!config->root.IsDefined() || config->root.IsNull()) throw InputError(name + ": empty file");
  if (!config->root.IsMap()) throw InputError(place(name, config->root.Mark()) + ": expected 'key: value' lines at the top level");
  check_tree(config->root, name, 0);
  for (const std::string& text_of_one : overrides) apply_override(*config, text_of_one);
  return config;
}

YAML::Node chosen(YAML::Node node, const std::string& path, const Choices& choices) {
  std::string at = path;
  while (node.IsDefined() && node.IsSequence()) {
    const auto found = choices.find(at);
    if (found == choices.end() || found->second >= node.size()) break;
    node.reset(node[found->second]);
    at += "[]";  // a list inside a list is an axis of its own
  }
  return node;
}

std::vector<Choices> product(const std::vector<Choices>& left, const std::vector<Choices>& right) {
  std::vector<Choices> all;
  for (const Choices& a : left) {
    for (const Choices& b : right) {
      Choices both = a;
      both.insert(b.begin(), b.end());
      all.push_back(std::move(both));
    }
  }
  return all;
}

constexpr std::size_t kMaxRuns = 100'000;

std::vector<Choices> expand(const YAML::Node& node, const std::string& path, const ConfigFile& file,
                            const std::set<std::string>& data_lists) {
  std::vector<Choices> all{{}};
  if (node.IsMap()) {
    for (const auto& item : node) {
      std::string below = path;
      while (below.ends_with("[]")) below.resize(below.size() - 2);  // what stands in a list is read as if it stood in its place
      below += (below.empty() ? "" : ".") + item.first.Scalar();
      const std::vector<Choices> inside = expand(item.second, below, file, data_lists);
      if (all.size() * inside.size() > kMaxRuns)
        throw InputError(place(file.name, node.Mark()) + ": the lists span more than 100,000 runs");
      all = product(all, inside);
    }
  } else if (node.IsSequence() && !data_lists.contains(path)) {
    if (node.size() == 0) throw InputError(place(file.name, node.Mark()) + ": '" + path + "' is an empty list: no run would be made");
    all.clear();
    for (std::size_t i = 0; i < node.size(); ++i) {
      const Choices mine{{path, i}};
      const std::vector<Choices> inside = expand(node[i], node[i].IsSequence() ? path + "[]" : path, file, data_lists);
      const std::vector<Choices> both = product({mine}, inside);
      all.insert(all.end(), both.begin(), both.end());
    }
  }
  return all;
}

YAML::Node resolve(const YAML::Node& node, const std::string& path, const Choices& choices) {
  const YAML::Node here = chosen(node, path, choices);
  if (!here.IsMap()) return here;
  YAML::Node copy(YAML::NodeType::Map);
  for (const auto& item : here) {
    const std::string below = path.empty() ? item.first.Scalar() : path + "." + item.first.Scalar();
    copy[item.first.Scalar()] = resolve(item.second, below, choices);
  }
  return copy;
}

// Walks to the node that a choice path names, taking the chosen elements on the way.
YAML::Node node_at(const ConfigFile& file, const std::string& path, const Choices& choices) {
  YAML::Node node = file.root;
  std::string at;
  for (std::string key : split(path, '.')) {
    while (key.ends_with("[]")) key.resize(key.size() - 2);
    node.reset(chosen(node, at, choices));
    if (!node.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
    node.reset(node[key]);
    at += (at.empty() ? "" : ".") + key;
  }
  return chosen(node, at, choices);
}

}  // namespace

std::shared_ptr<const ConfigFile> parse_config(const std::string& text, const std::string& name,
                                               const std::vector<std::string>& overrides) {
  return parse_checked(text, name, overrides);
}

std::shared_ptr<const ConfigFile> load_config(const std::string& file, const std::vector<std::string>& overrides) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) throw InputError(file + ": is a directory; a YAML file is expected");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InputError(file + ": cannot be opened");
  std::stringstream text;
  text << stream.rdbuf();
  return parse_checked(text.str(), file, overrides);
}

Params::Params(const std::shared_ptr<const ConfigFile>& file, std::shared_ptr<const Choices> choices, std::string owner)
    : Params(file, std::move(choices), file->root, "", std::move(owner)) {}

Params::Params(std::shared_ptr<const ConfigFile> file, std::shared_ptr<const Choices> choices, const YAML::Node& node, std::string path,
               std::string owner)
    : file_(std::move(file)), choices_(std::move(choices)), node_(node), path_(std::move(path)), owner_(std::move(owner)) {}

Params Params::from_text(const std::string& yaml, const std::string& owner) {
  return {parse_config(yaml, "<" + owner + ">"), std::make_shared<Choices>(), owner};
}

Params Params::describing(const std::string& owner, std::vector<ParamDoc>& docs) {
  Params p = from_text("{}", owner);
  p.docs_ = &docs;
  return p;
}

YAML::Node Params::find(const std::string& key) const {
  seen_->insert(key);
  if (is_describing() || !node_.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
  const YAML::Node node = node_[key];
  if (!node.IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
  return chosen(node, path_of(key), *choices_);
}

bool Params::has(const std::string& key) const { return !is_describing() && node_.IsMap() && node_[key].IsDefined(); }

std::vector<std::string> Params::keys() const {
  std::vector<std::string> all;
  if (node_.IsMap()) {
    for (const auto& item : node_) all.push_back(item.first.Scalar());
  }
  return all;
}

void Params::fail_node(const YAML::Node& node, const std::string& path, const std::string& message) const {
  for (std::string at = path; !at.empty();) {  // a value from the command line has no line in the file
    const auto set = file_->set_by.find(at);
    if (set != file_->set_by.end()) throw InputError(set->second + ": " + message);
    const std::size_t dot = at.rfind('.');
    at = dot == std::string::npos ? "" : at.substr(0, dot);
  }
  throw InputError((node.IsDefined() ? place(file_->name, node.Mark()) : file_->name) + ": " + message);
}

void Params::fail(const std::string& message) const { fail_node(node_, path_, message); }

void Params::fail_missing(const std::string& key) const {
  const std::string near = nearest_name(key, keys());
  fail(owner_ + " needs '" + key + "'" + (near.empty() || seen_->contains(near) ? "" : "; found '" + near + "': misspelled?"));
}

void Params::fail_at(const std::string& key, const std::string& message) const {
  const YAML::Node node = find(key);
  fail_node(node.IsDefined() ? node : node_, path_of(key), message);
}

long long Params::integer_at(const std::string& key, const YAML::Node& node, long long min, long long max) const {
  const std::string found = text_at(key, node);
  long long value = 0;
  if (!parse_integer(found, value)) fail_node(node, path_of(key), "'" + key + "': not a whole number: '" + found + "'");
  if (value < min || value > max) fail_node(node, path_of(key), fmt::format("'{}' = {} is outside [{}, {}]", key, found, min, max));
  return value;
}

double Params::real_at(const std::string& key, const YAML::Node& node, double min, double max) const {
  const std::string found = text_at(key, node);
  double value = 0;
  if (!parse_real(found, value)) fail_node(node, path_of(key), "'" + key + "': not a number: '" + found + "'");
  if (!(value >= min && value <= max)) fail_node(node, path_of(key), fmt::format("'{}' = {} is outside [{}, {}]", key, found, min, max));
  return value;
}

std::string Params::text_at(const std::string& key, const YAML::Node& node) const {
  if (!node.IsScalar()) {
    const char* what = node.IsMap() ? "a mapping" : node.IsSequence() ? "a list" : "nothing";
    fail_node(node, path_of(key), "'" + key + "': expected one value, found " + what);
  }
  return node.Scalar();
}

void Params::record(const std::string& key, const std::string& type, const std::string& fallback, const std::string& range,
                    const std::string& meaning) {
  if (docs_ != nullptr) docs_->push_back({key, type, fallback, range, meaning});
  if (docs_ == nullptr && !fallback.empty() && !has(key)) (*defaults_)[path_of(key)] = fallback;
}

bool Params::flag(const std::string& key, bool fallback, const std::string& meaning) {
  record(key, "flag", fallback ? "true" : "false", "true, false", meaning);
  const YAML::Node node = find(key);
  if (!node.IsDefined()) return fallback;
  const std::string found = text_at(key, node);
  if (found == "true") return true;
  if (found == "false") return false;
  fail_node(node, path_of(key), "'" + key + "': expected true or false, found '" + found + "'");
}

std::string Params::text(const std::string& key, const std::string& meaning) {
  record(key, "text", "", "", meaning);
  if (is_describing()) return "";
  const YAML::Node node = find(key);
  if (!node.IsDefined()) fail_missing(key);
  return text_at(key, node);
}

std::string Params::text(const std::string& key, const std::string& fallback, const std::string& meaning) {
  record(key, "text", fallback, "", meaning);
  const YAML::Node node = find(key);
  return node.IsDefined() ? text_at(key, node) : fallback;
}

std::size_t Params::choice(const std::string& key, const std::vector<std::string>& names, std::size_t fallback,
                           const std::string& meaning) {
  record(key, "choice", names[fallback], join(names, ", "), meaning);
  const YAML::Node node = find(key);
  if (!node.IsDefined()) return fallback;
  const std::string found = text_at(key, node);
  const auto at = std::find(names.begin(), names.end(), found);
  if (at == names.end()) fail_node(node, path_of(key), "'" + key + "': unknown value '" + found + "'" + suggestion(found, names));
  return static_cast<std::size_t>(at - names.begin());
}

Span Params::milliseconds(const std::string& key, double fallback, double min, double max, const std::string& meaning) {
  return from_seconds(optional<double>(key, fallback, min, max, meaning) * 1e-3);
}

Span Params::seconds(const std::string& key, double fallback, double min, double max, const std::string& meaning) {
  return from_seconds(optional<double>(key, fallback, min, max, meaning));
}

std::vector<double> Params::numbers(const std::string& key, double min, double max, const std::string& meaning) {
  record(key, "list of reals", "", range_text(min, max), meaning);
  const YAML::Node node = find(key);
  std::vector<double> all;
  if (!node.IsDefined()) return all;
  if (!node.IsSequence()) fail_node(node, path_of(key), "'" + key + "': expected a list, [a, b, ...]");
  for (const auto& item : node) all.push_back(real_at(key, item, min, max));
  return all;
}

std::vector<std::string> Params::words(const std::string& key, const std::string& meaning) {
  record(key, "list of words", "", "", meaning);
  const YAML::Node node = find(key);
  std::vector<std::string> all;
  if (!node.IsDefined()) return all;
  if (!node.IsSequence()) fail_node(node, path_of(key), "'" + key + "': expected a list, [a, b, ...]");
  for (const auto& item : node) all.push_back(text_at(key, item));
  return all;
}

Params Params::child(const std::string& key, const std::string& owner) {
  if (!find(key).IsDefined() && !is_describing()) fail_missing(key);
  return optional_child(key, owner);
}

Params Params::optional_child(const std::string& key, const std::string& owner) {
  const YAML::Node node = find(key);
  if (!node.IsDefined() || node.IsNull()) {
    Params none = *this;
    none.node_.reset(YAML::Node(YAML::NodeType::Map));
    none.path_ = path_of(key);
    none.owner_ = owner;
    none.seen_ = std::make_shared<std::set<std::string>>();
    return none;
  }
  if (!node.IsMap()) fail_node(node, path_of(key), "'" + key + "': expected 'key: value' lines");
  Params below(file_, choices_, node, path_of(key), owner);
  below.defaults_ = defaults_;
  return below;
}

Params Params::child_or_text(const std::string& key, const std::string& name_key, const std::string& owner) {
  const YAML::Node node = find(key);
  if (!node.IsDefined() || !node.IsScalar()) return optional_child(key, owner);
  YAML::Node map(YAML::NodeType::Map);
  map.force_insert(name_key, node);
  Params below(file_, choices_, map, path_of(key), owner);
  below.defaults_ = defaults_;
  return below;
}

std::pair<std::string, Params> Params::named(const std::string& key, const std::string& fallback, const std::string& meaning) {
  record(key, "name, or {name: {parameters}}", fallback, "", meaning);
  const YAML::Node node = find(key);
  const auto without_parameters = [&](const std::string& name) {
    Params none = optional_child("\x01none", key + " '" + name + "'");
    seen_->erase("\x01none");
    none.path_ = path_of(key) + "." + name;
    if (node.IsDefined()) {  // an empty mapping has no place of its own: messages name that of the word
      auto at_word = std::make_shared<ConfigFile>(*file_);
      at_word->name = place(file_->name, node.Mark());
      none.file_ = std::move(at_word);
      none.node_.reset(YAML::Node(YAML::NodeType::Map));
    }
    return std::pair{name, none};
  };
  if (!node.IsDefined()) {
    if (fallback.empty() && !is_describing()) fail_missing(key);
    return without_parameters(fallback);
  }
  if (node.IsScalar()) return without_parameters(node.Scalar());
  if (!node.IsMap() || node.size() != 1) fail_node(node, path_of(key), "'" + key + "': expected a name, or one {name: {parameters}}");
  const std::string name = node.begin()->first.Scalar();
  const YAML::Node inner = chosen(node.begin()->second, path_of(key) + "." + name, *choices_);
  if (inner.IsNull()) return without_parameters(name);
  if (!inner.IsMap()) fail_node(inner, path_of(key) + "." + name, "'" + name + "': expected its parameters as {key: value}");
  Params below(file_, choices_, inner, path_of(key) + "." + name, key + " '" + name + "'");
  below.defaults_ = defaults_;
  return {name, below};
}

std::string Params::inline_text(const std::string& key, const std::string& absent) const {
  const YAML::Node node = node_[key];
  if (!node.IsDefined()) return absent;
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  out << chosen(node, path_of(key), *choices_);
  std::string text = out.c_str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string Params::text_of_all() const {
  YAML::Emitter out;
  out << node_;
  std::string text = out.c_str();
  for (const auto& [path, index] : *choices_)
    if (path.starts_with(path_)) text += "\n" + path + " " + std::to_string(index);
  return text;
}

void Params::reject_unread() const {
  if (!node_.IsMap()) return;
  for (const auto& item : node_) {
    const std::string& key = item.first.Scalar();
    if (seen_->contains(key)) continue;
    const std::vector<std::string> known(seen_->begin(), seen_->end());
    fail_node(item.first, path_of(key), "unknown key '" + key + "' in " + owner_ + suggestion(key, known));
  }
}

std::string Params::resolve_file(const std::string& path) const {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::path(path).is_absolute() || fs::exists(path, error)) return path;
  const fs::path beside = fs::path(file_->name).parent_path() / path;
  return fs::exists(beside, error) ? beside.string() : path;
}

std::vector<Choices> expand_axes(const ConfigFile& file, const std::set<std::string>& data_lists) {
  return expand(file.root, "", file, data_lists);
}

std::string resolved_text(const ConfigFile& file, const Choices& choices) {
  YAML::Emitter out;
  out << resolve(file.root, "", choices);
  return std::string(out.c_str()) + "\n";
}

namespace {

// "snapkv 128": the recipe and its budget, where both are one value.
std::string recipe_label(const YAML::Node& policy) {
  std::string label = policy["recipe"].Scalar();
  for (const char* key : {"budget_tokens", "budget_frac", "compression_ratio"})
    if (policy[key] && policy[key].IsScalar()) label += " " + policy[key].Scalar();
  return label;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> choice_labels(const ConfigFile& file, const Choices& choices) {
  std::vector<std::pair<std::string, std::string>> labels;
  for (const auto& [path, index] : choices) {
    if (path.ends_with("[]")) continue;
    const YAML::Node node = node_at(file, path, choices);
    std::string value;
    if (node.IsScalar())
      value = node.Scalar();
    else if (node.IsMap() && node["recipe"] && node["recipe"].IsScalar())
      value = recipe_label(node);
    else if (node.IsMap() && node.size() == 1)
      value = node.begin()->first.Scalar();
    else
      value = std::to_string(index);
    labels.emplace_back(path, value);
  }
  return labels;
}

}  // namespace kvlab
