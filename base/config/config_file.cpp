#include "base/config/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/config/merge_keys.h"
#include "base/config/stage_lists.h"
#include "base/config/yaml_errors.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxRepeated = 10'000;
constexpr std::size_t kMaxKeyBytes = 1000;  // YAML accepts up to 1,024 for implicit keys

// Rejects what yaml-cpp accepts: equal keys (it returns the first), and nested aliases that grow exponentially.
class TreeCheck {
 public:
  // Without aliases, a text has fewer values than bytes.
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

// An empty mapping with the position of `original`, for messages.
YAML::Node empty_map_like(const YAML::Node& original) {
  if (!original.IsDefined() || !original.IsMap()) return YAML::Node(YAML::NodeType::Map);
  const YAML::Mark mark = original.Mark();
  const auto count = [](int n) { return static_cast<std::size_t>(std::max(0, n)); };
  YAML::Node map = YAML::Load(std::string(count(mark.line), '\n') + std::string(count(mark.column), ' ') + "{}");
  map.SetStyle(original.Style());
  return map;
}

// "a.b=value" from the command line.
class Override {
 public:
  Override(std::string origin, const std::string& file, std::vector<std::string> keys, const YAML::Node& value)
      : origin_(std::move(origin)), file_(file), keys_(std::move(keys)), value_(value) {}

  // `node` with the value. Copies nodes, since aliases (*name) share them. A scalar on the way ("scheduler: sarathi") becomes {sarathi:
  // {}}.
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

// YAML::LoadAll never ends on some invalid texts ("," in yaml-cpp 0.7).
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents nothing;
  return parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing);
}

}  // namespace

std::string find_named_file(const ConfigFile& config, const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::path(path).is_absolute()) return path;
  std::error_code error;
  for (const fs::path& folder : config.folders)
    if (fs::exists(folder / path, error)) return (folder / path).string();
  return (config.folders.front() / path).string();
}

std::string place_of(const ConfigFile& config, const YAML::Node& node, const std::string& path) {
  for (std::string at = path; !at.empty();) {  // command-line values have no line in the file
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

}  // namespace kvlab
