#include "app/results/list_entries.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "app/results/run_settings.h"
#include "base/config/config_file.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

std::string entry_base(const std::string& label) {
  const std::size_t at = label.rfind('#');
  long long place = 0;
  return at != std::string::npos && parse_integer(label.substr(at + 1), place) ? label.substr(0, at) : "";
}

std::string EntryForm::value_of(const std::string& key) const {
  for (const auto& [path, value] : set)
    if (path == key) return value;
  const auto found = defaults.find(key);
  return found == defaults.end() ? "" : found->second;
}

bool ListEntry::is_known() const {
  return std::all_of(forms.begin(), forms.end(), [](const EntryForm& form) { return form.is_read; });
}

bool ListEntry::is_axis(const std::string& key) const {
  return std::any_of(axes.begin(), axes.end(), [&](const std::string& axis) { return (key + ".").starts_with(axis + "."); });
}

bool ListEntry::varies(const std::string& key) const {
  const std::string first = forms.front().value_of(key);
  return std::any_of(forms.begin(), forms.end(), [&](const EntryForm& form) { return form.value_of(key) != first; });
}

bool ListEntry::is_ambiguous() const {
  std::set<std::string> keys;
  for (const EntryForm& form : forms)
    for (const auto& one : form.set) keys.insert(one.first);
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return !is_axis(key) && varies(key); });
}

namespace {

// Scalars and lists, by path.
void add_leaves(const YAML::Node& node, const std::string& path, EntryForm& form) {
  if (!node.IsDefined() || node.IsNull()) return;
  if (!node.IsMap()) {
    if (!path.empty()) form.set.emplace_back(path, yaml_on_one_line(node));
    return;
  }
  for (const auto& item : node) add_leaves(item.second, path + (path.empty() ? "" : ".") + item.first.Scalar(), form);
}

// The key's block and defaults; all lines if the block has aliases.
std::string lines_on(const std::string& text, const std::string& top_key) {
  const std::string own = top_key + ":", of_defaults = "#   " + top_key;
  std::string found;
  bool is_inside = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.starts_with(own))
      is_inside = true;
    else if (std::string_view(" -}]").find(line.front()) == std::string_view::npos)
      is_inside = false;
    if (is_inside && line.find('*') != std::string_view::npos) return text;
    if (is_inside || line.starts_with(of_defaults)) found += line;
    begin = end;
  }
  return found;
}

EntryForm form_of(const RunSettings& settings, const std::string& path) {
  EntryForm form;
  form.is_read = settings.tree.IsDefined();
  add_leaves(node_at(settings.tree, path), "", form);
  for (const auto& [key, value] : settings.defaults)
    if (key.starts_with(path + ".")) form.defaults.emplace(key.substr(path.size() + 1), value);
  return form;
}

// Parses equal lines once.
class FormReader {
 public:
  explicit FormReader(std::string path) : path_(std::move(path)), top_key_(path_.substr(0, path_.find('.'))) {}

  void add(const std::filesystem::path& run, ListEntry& entry) {
    const std::string text = read_if_there(run / "resolved.yaml");
    const auto [known, is_new] = forms_.try_emplace(lines_on(text, top_key_));
    if (is_new) known->second = form_of(parse_run_settings(text), path_);
    if (seen_.insert({entry.label, known->first}).second) entry.forms.push_back(known->second);
  }

 private:
  std::string path_, top_key_;
  std::map<std::string, EntryForm> forms_;
  std::set<std::pair<std::string, std::string>> seen_;  // label, lines
};

}  // namespace

std::map<std::string, ListEntry> read_list_entries(const View& view, std::size_t axis) {
  const std::string& column = view.axes[axis];
  const std::string path = axis_column("block_caches") == column ? "block_caches" : column;
  FormReader reader(path);
  std::map<std::string, ListEntry> entries;
  for (const ViewRow& row : view.rows) {
    const std::string& label = row.labels[axis];
    if (entry_base(label).empty()) continue;
    ListEntry& entry = entries.try_emplace(label, ListEntry{label, {}, {}}).first->second;
    for (std::size_t a = 0; a < view.axes.size(); ++a)
      if (!row.labels[a].empty() && view.axes[a].starts_with(path + ".")) entry.axes.insert(view.axes[a].substr(path.size() + 1));
    reader.add(row.run, entry);
  }
  return entries;
}

}  // namespace kvlab
