#include "base/config/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/file_memo.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::size_t indentation(const std::string& line) { return std::min(line.find_first_not_of(" \t\r"), line.size()); }
bool is_indented_by_tab(const std::string& line) { return line.substr(0, indentation(line)).find('\t') != std::string::npos; }
bool has_content(const std::string& line) { return indentation(line) < line.size() && line[indentation(line)] != '#'; }

// Last non-empty line before `at`, else `at`.
std::size_t line_before(const std::vector<std::string>& lines, std::size_t at) {
  for (std::size_t i = at; i > 0; --i)
    if (has_content(lines[i - 1])) return i - 1;
  return at;
}

std::string compared_indentation(const std::vector<std::string>& lines, std::size_t at) {
  const std::size_t before = line_before(lines, at);
  if (before == at || indentation(lines[at]) == indentation(lines[before])) return "";
  return fmt::format("; is line {} indented as it should be? It begins with {} spaces, line {} with {}", at + 1, indentation(lines[at]),
                     before + 1, indentation(lines[before]));
}

std::string hint(const std::vector<std::string>& lines, const YAML::Mark& mark, const std::string& message) {
  const auto at = std::min(static_cast<std::size_t>(std::max(mark.line, 0)), lines.size() - 1);
  for (const std::size_t i : {at, line_before(lines, at)})
    if (is_indented_by_tab(lines[i])) return fmt::format("; line {} is indented by a tab: YAML takes spaces", i + 1);
  if (message.starts_with("end of map flow")) return "; a '{' is not closed";
  if (message.starts_with("end of sequence flow")) return "; a '[' is not closed";
  if (message == "unknown token") return "; a value that begins with such a sign needs quotes";
  const std::string before_mark = lines[at].substr(0, static_cast<std::size_t>(std::max(mark.column, 0)));
  const bool is_second_colon = before_mark.find(": ") != std::string::npos;
  if (message == "illegal map value" && is_second_colon) return "; a value that holds ': ' needs quotes";
  const bool is_about_blocks =
      message == "illegal map value" || message == "illegal block entry" || message == "illegal map key" || message.starts_with("end of");
  return is_about_blocks ? compared_indentation(lines, at) : "";
}

// yaml-cpp's message on invalid YAML, with the likely mistake: a tab, indentation, an open bracket, missing quotes.
std::string yaml_error(const std::string& text, const YAML::Mark& mark, const std::string& message) {
  const std::vector<std::string> lines = lines_of(text);
  return mark.is_null() || lines.empty() ? message : message + hint(lines, mark, message);
}

// "" with a line '---', else the line with the indentation that ends the first document.
std::string cause_of_second_document(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  if (std::any_of(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("---"); })) return "";
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (has_content(lines[i]) && indentation(lines[i]) < indentation(lines[line_before(lines, i)])) return compared_indentation(lines, i);
  return "";
}

constexpr const char* kMerge = "<<";

void merge(YAML::Node& into, const YAML::Node& from, const std::string& file) {
  if (!from.IsMap()) throw InputError(place(file, from.Mark()) + ": '<<' takes a mapping or a list of mappings, as in '<<: *name'");
  for (const auto& item : from)
    if (const YAML::Node& known = into; !known[item.first.Scalar()].IsDefined()) into.force_insert(item.first, item.second);
}

// Resolves merge keys (`<<: *base`, or a list) below `root`. Own keys win, then the first named mapping.
void resolve_merge_keys(YAML::Node& root, const std::string& file) {
  if (!root.IsMap() && !root.IsSequence()) return;
  for (const auto& item : root) {
    YAML::Node below = root.IsMap() ? item.second : YAML::Node(item);
    resolve_merge_keys(below, file);
  }
  if (!root.IsMap()) return;
  const YAML::Node& as_read = root;
  const YAML::Node named = as_read[kMerge];
  if (!named.IsDefined()) return;
  root.remove(kMerge);
  if (!named.IsSequence()) return merge(root, named, file);
  for (const auto& one : named) merge(root, one, file);
}

constexpr const char* kStages = "stages";

bool is_list_of_stages(const YAML::Node& list) {
  return list.IsDefined() && list.IsSequence() && list.size() > 0 &&
         std::all_of(list.begin(), list.end(), [](const YAML::Node& item) { return item.IsMap(); });
}

// Moves the name to `name`.
YAML::Node take_name(const YAML::Node& stage, std::string& name) {
  const YAML::Node own = stage["name"];
  if (!own.IsDefined() || !own.IsScalar()) return stage;
  name = own.Scalar();
  YAML::Node rest(YAML::NodeType::Map);
  for (const auto& item : stage)
    if (item.first.Scalar() != "name") rest.force_insert(item.first, item.second);
  return rest;
}

void name_stages_of(YAML::Node arrival, const std::string& file) {
  if (!arrival.IsMap()) return;
  const YAML::Node list = std::as_const(arrival)[kStages];
  if (!is_list_of_stages(list)) return;
  const std::size_t digits = std::to_string(list.size()).size();  // sorts names by stage
  YAML::Node named(YAML::NodeType::Map);
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const YAML::Node item = list[i];
    std::string name = fmt::format("stage {:0{}}", i + 1, digits);
    const YAML::Node stage = take_name(item, name);
    if (!names.insert(name).second) throw InputError(fmt::format("{}: two stages are named '{}'", place(file, item.Mark()), name));
    named.force_insert(name, stage);
  }
  arrival[kStages] = named;
}

// Stages are data, not a sweep axis: in each `arrival` below `root`, `stages: [{...}, {...}]` becomes `stages: {stage 1: {...}, stage 2:
// {...}}`; `name` replaces the key. InputError for equal names.
void name_stages(const YAML::Node& root, const std::string& file) {
  if (root.IsSequence())
    for (const auto& item : root) name_stages(item, file);
  if (!root.IsMap()) return;
  for (const auto& item : root) {
    const YAML::Node value = item.second;
    if (item.first.IsScalar() && item.first.Scalar() == "arrival") {
      name_stages_of(value, file);
      if (value.IsSequence())
        for (std::size_t i = 0; i < value.size(); ++i) name_stages_of(value[i], file);
    }
    name_stages(value, file);
  }
}

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxRepeated = 10'000;
constexpr std::size_t kMaxKeyBytes = 1000;  // YAML's limit for implicit keys is 1,024

// Rejects equal keys (yaml-cpp returns the first) and nested aliases that grow exponentially.
class TreeCheck {
 public:
  // Without aliases, texts have fewer values than bytes.
  TreeCheck(const std::string& file, std::size_t text_bytes) : file_(file), left_(text_bytes + kMaxRepeated) {}

  void check(const YAML::Node& node, int depth = 0) {
    if (depth > kMaxDepth) fail(node, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    if (left_ == 0) fail(node, "aliases (*name) repeat too much: more than 10,000 values beyond what is written");
    --left_;
    if (node.IsSequence()) {
      for (const auto& item : node) check(item, depth + 1);
    } else if (node.IsMap()) {
      std::set<std::string> seen;
      for (const auto& item : node) {
        if (!item.first.IsScalar()) fail(item.first, "a key must be a plain word");
        if (item.first.Scalar().size() > kMaxKeyBytes) fail(item.first, "a key of more than 1,000 bytes");
        if (!seen.insert(item.first.Scalar()).second) fail(item.first, "key '" + item.first.Scalar() + "' appears twice");
        check(item.second, depth + 1);
      }
    }
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, const std::string& message) const {
    throw InputError(place(file_, node.Mark()) + ": " + message);
  }

  const std::string& file_;
  std::size_t left_;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// Has the position of `original`, for messages.
YAML::Node empty_map_like(const YAML::Node& original) {
  if (!original.IsDefined() || !original.IsMap()) return YAML::Node(YAML::NodeType::Map);
  const YAML::Mark mark = original.Mark();
  const auto count = [](int n) { return static_cast<std::size_t>(std::max(0, n)); };
  YAML::Node map = YAML::Load(std::string(count(mark.line), '\n') + std::string(count(mark.column), ' ') + "{}");
  map.SetStyle(original.Style());
  return map;
}

// "a.b=value" of the command line.
class Override {
 public:
  Override(std::string origin, const std::string& file, std::vector<std::string> keys, const YAML::Node& value)
      : origin_(std::move(origin)), file_(file), keys_(std::move(keys)), value_(value) {}

  // `node` with the value. Copies nodes, since aliases share them. A scalar on the way ("scheduler: sarathi") becomes {sarathi: {}}.
  [[nodiscard]] YAML::Node in(const YAML::Node& node, std::size_t depth = 0) const {
    if (depth == keys_.size()) return value_;
    if (node.IsDefined() && node.IsSequence())
      throw InputError(origin_ + ": '" + keys_[depth - 1] + "' is a list in " + file_ + "; set the whole list");
    YAML::Node copy = empty_map_like(node);
    bool is_new = true;
    if (node.IsDefined() && node.IsMap()) {
      for (const auto& item : node) {
        const bool is_it = item.first.Scalar() == keys_[depth];
        copy.force_insert(item.first, is_it ? in(item.second, depth + 1) : item.second);
        is_new = is_new && !is_it;
      }
    } else if (node.IsDefined() && node.IsScalar()) {
      is_new = node.Scalar() != keys_[depth];
      const YAML::Node below(YAML::NodeType::Map);
      copy.force_insert(node.Scalar(), is_new ? below : in(below, depth + 1));
    }
    if (is_new) copy.force_insert(keys_[depth], in(YAML::Node(YAML::NodeType::Null), depth + 1));
    return copy;
  }

 private:
  std::string origin_;
  const std::string& file_;
  std::vector<std::string> keys_;
  YAML::Node value_;
};

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
  TreeCheck(origin, text.size()).check(value);
  resolve_merge_keys(value, origin);
  const std::vector<std::string> keys = split(path, '.');
  if (keys.empty() || path.ends_with('.') || std::find(keys.begin(), keys.end(), "") != keys.end())
    throw InputError(origin + ": expected --set key.key=value");
  config.root.reset(Override(origin, config.name, keys, value).in(config.root));
  config.set_by[path] = origin;
}

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

// A block mapping from column 0 ends at the end of the text, or at a mark.
bool is_one_block(const std::string& text) {
  std::size_t content = text.find_first_not_of('\n');
  while (content < text.size() && text[content] == '#') content = text.find_first_not_of('\n', text.find('\n', content));
  const bool begins_with_word = content < text.size() && std::isalnum(static_cast<unsigned char>(text[content])) != 0;
  return begins_with_word && text.find('\r') == std::string::npos && text.find("\n---") == std::string::npos &&
         text.find("\n...") == std::string::npos;
}

// YAML::LoadAll does not end on some invalid texts ("," in yaml-cpp 0.7).
bool has_second_document(const std::string& text) {
  if (is_one_block(text)) return false;
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents nothing;
  return parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing);
}

}  // namespace

std::string yaml_on_one_line(const YAML::Node& node) {
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  out << node;
  std::string text = out.c_str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string find_named_file(const ConfigFile& config, const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::path(path).is_absolute()) return path;
  std::error_code error;
  for (const fs::path& folder : config.folders)
    if (fs::exists(folder / path, error)) return (folder / path).string();
  return (config.folders.front() / path).string();
}

std::string place_of(const ConfigFile& config, const YAML::Node& node, const std::string& path) {
  for (std::string at = path; !at.empty();) {  // command-line values have no line
    while (at.ends_with("[]")) at.resize(at.size() - 2);
    const auto set = config.set_by.find(at);
    if (set != config.set_by.end()) return set->second;
    const std::size_t dot = at.rfind('.');
    at = dot == std::string::npos ? "" : at.substr(0, dot);
  }
  return node.IsDefined() ? place(config.name, node.Mark()) : config.name;
}

std::string place(const std::string& file, const YAML::Mark& mark) {
  if (mark.is_null()) return file;
  return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

std::shared_ptr<const ConfigFile> parse_config(const std::string& text, const std::string& name,
                                               const std::vector<std::string>& overrides) {
  auto config = std::make_shared<ConfigFile>();
  config->name = name;
  config->folders = {std::filesystem::path(), std::filesystem::path(name).parent_path()};
  if (text.find('\0') != std::string::npos) throw InputError(name + ": not a text file (it holds a zero byte)");
  try {
    config->root = YAML::Load(text);
    if (config->root.IsMap() && has_second_document(text))
      throw InputError(name + ": holds more than one YAML document; one is expected" + cause_of_second_document(text));
  } catch (const YAML::Exception& e) {
    throw InputError(place(name, e.mark) + ": " + yaml_error(text, e.mark, e.msg));
  }
  if (!config->root.IsDefined() || config->root.IsNull()) throw InputError(name + ": empty file");
  if (!config->root.IsMap()) throw InputError(place(name, config->root.Mark()) + ": expected 'key: value' lines at the top level");
  TreeCheck(name, text.size()).check(config->root);
  resolve_merge_keys(config->root, name);
  for (const std::string& text_of_one : overrides) apply_override(*config, text_of_one);
  name_stages(config->root, name);
  return config;
}

std::shared_ptr<const ConfigFile> load_config(const std::string& file, const std::vector<std::string>& overrides) {
  return parse_config(read_file(file, "a YAML file"), file, overrides);
}

std::shared_ptr<const ConfigFile> shared_config(const std::string& file) {
  thread_local FileMemo<std::shared_ptr<const ConfigFile>> parsed;  // threads may not share nodes
  return *parsed.get(file, [&](SeenFiles& seen) {
    seen.add(file);
    return load_config(file);
  });
}

}  // namespace kvlab
