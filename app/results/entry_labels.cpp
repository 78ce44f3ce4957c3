#include "app/results/entry_labels.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string_view>

#include "app/results/run_folder.h"
#include "app/runs/report/known_metrics.h"
#include "base/config/config_file.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// In a run.
struct EntryForm {
  std::vector<std::pair<std::string, std::string>> set;  // path in the entry -> value, in order
  std::map<std::string, std::string> defaults;
  bool is_read = false;  // resolved.yaml was readable

  // Value or default, or "".
  [[nodiscard]] std::string value_of(const std::string& key) const {
    for (const auto& [path, value] : set)
      if (path == key) return value;
    const auto found = defaults.find(key);
    return found == defaults.end() ? "" : found->second;
  }
};

// Over its label's runs. Defaults may depend on another axis; joined folders may reuse a label.
struct ListEntry {
  std::string label;
  std::vector<EntryForm> forms;  // in row order
  std::set<std::string> axes;    // paths in the entry that are lists

  [[nodiscard]] bool is_known() const {
    return std::all_of(forms.begin(), forms.end(), [](const EntryForm& form) { return form.is_read; });
  }

  // Includes mappings around the key.
  [[nodiscard]] bool is_axis(const std::string& key) const {
    return std::any_of(axes.begin(), axes.end(), [&](const std::string& axis) { return (key + ".").starts_with(axis + "."); });
  }

  [[nodiscard]] bool varies(const std::string& key) const {
    const std::string first = forms.front().value_of(key);
    return std::any_of(forms.begin(), forms.end(), [&](const EntryForm& form) { return form.value_of(key) != first; });
  }

  // Set values differ between runs: the label names several entries.
  [[nodiscard]] bool is_ambiguous() const {
    std::set<std::string> keys;
    for (const EntryForm& form : forms)
      for (const auto& one : form.set) keys.insert(one.first);
    return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return !is_axis(key) && varies(key); });
  }
};

// "sarathi" of "sarathi#2"; "" without a place.
std::string entry_base(const std::string& label) {
  const std::size_t at = label.rfind('#');
  long long place = 0;
  return at != std::string::npos && parse_integer(label.substr(at + 1), place) ? label.substr(0, at) : "";
}

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

  void add(const fs::path& run, ListEntry& entry) {
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

// Only labels with a place ("sarathi#2").
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

using EntryParameters = EntryLabels::Parameters;

// In file order.
std::vector<std::string> differing_keys(const std::vector<const ListEntry*>& entries) {
  std::vector<std::string> keys;
  for (const ListEntry* const entry : entries)
    for (const EntryForm& form : entry->forms)
      for (const auto& [key, value] : form.set)
        if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  std::erase_if(keys, [&](const std::string& key) {
    const std::string first = entries.front()->forms.front().value_of(key);
    return std::all_of(entries.begin(), entries.end(),
                       [&](const ListEntry* e) { return !e->varies(key) && e->forms.front().value_of(key) == first; });
  });
  return keys;
}

// All empty if two entries would be equal. An ambiguous entry has none.
std::vector<EntryParameters> parameters_of(const std::vector<const ListEntry*>& entries) {
  const std::vector<std::string> keys = differing_keys(entries);
  std::vector<EntryParameters> found;
  std::set<EntryParameters> seen;
  for (const ListEntry* const entry : entries) {
    EntryParameters& own = found.emplace_back();
    if (!entry->is_known() || entry->is_ambiguous()) continue;
    for (const std::string& key : keys)
      if (const std::string value = entry->forms.front().value_of(key); !value.empty() && !entry->is_axis(key) && !entry->varies(key))
        own.emplace_back(short_path(key, keys), value);
    if (!own.empty() && !seen.insert(own).second) return std::vector<EntryParameters>(entries.size());
  }
  return found;
}

}  // namespace

EntryLabels::EntryLabels(const View& view) {
  for (std::size_t axis = 0; axis < view.axes.size(); ++axis) {
    const std::map<std::string, ListEntry> entries = read_list_entries(view, axis);
    std::map<std::string, std::vector<const ListEntry*>> lists;  // policy -> entries
    for (const auto& [label, entry] : entries) lists[entry_base(label)].push_back(&entry);
    for (const auto& [base, list] : lists) {
      std::vector<Parameters> parameters = parameters_of(list);
      for (std::size_t i = 0; i < list.size(); ++i) {
        columns_[view.axes[axis]][list[i]->label] = std::move(parameters[i]);
        if (list[i]->is_known() && list[i]->is_ambiguous()) ambiguous_.emplace(view.axes[axis], list[i]->label);
      }
    }
  }
}

EntryLabels EntryLabels::of_folder(const fs::path& folder) {
  EntryLabels labels;
  const auto manifest = read_json_object<nlohmann::ordered_json>(folder / "manifest.json");
  if (!manifest.contains("entries") || !manifest["entries"].is_object()) return labels;
  for (const auto& [column, entries] : manifest["entries"].items())
    for (const auto& [label, parameters] : entries.items()) {
      Parameters& own = labels.columns_[column][label];
      if (parameters.is_null()) labels.ambiguous_.emplace(column, label);
      for (const auto& [key, value] : parameters.items())
        if (value.is_string()) own.emplace_back(key, value.get<std::string>());
    }
  return labels;
}

nlohmann::ordered_json EntryLabels::json() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [column, entries] : columns_)
    for (const auto& [label, parameters] : entries) {
      nlohmann::ordered_json& own = all[column][label];
      if (is_ambiguous(column, label)) continue;  // null
      own = nlohmann::ordered_json::object();
      for (const auto& [key, value] : parameters) own[key] = value;
    }
  return all;
}

std::string EntryLabels::shown(const std::string& column, const std::string& label) const {
  const auto entries = columns_.find(column);
  if (entries == columns_.end()) return label;
  const auto found = entries->second.find(label);
  if (found == entries->second.end() || found->second.empty()) return label;
  std::vector<std::string> texts;
  for (const auto& [key, value] : found->second) texts.push_back(key + ": " + value);
  return entry_base(label) + " {" + join(texts, ", ") + "}";
}

void add_entries(const View& view, nlohmann::ordered_json& manifest) {
  if (const EntryLabels labels(view); !labels.empty()) manifest["entries"] = labels.json();
}

void EntryLabels::show_in(CsvTable& summary) const {
  for (const auto& [column, entries] : columns_) {
    if (!summary.has(column)) continue;
    const std::size_t c = summary.at(column);
    for (auto& row : summary.rows) row[c] = shown(column, row[c]);
  }
}

}  // namespace kvlab
