#include "app/results/entry_labels.h"

#include <algorithm>
#include <set>
#include <utility>

#include "app/results/run_settings.h"
#include "base/json_text.h"
#include "base/text.h"
#include "base/yaml_line.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

using EntryParameters = EntryLabels::Parameters;

// "sarathi" of "sarathi#2"; "" of a label without a place.
std::string entry_base(const std::string& label) {
  const std::size_t at = label.rfind('#');
  long long place = 0;
  return at != std::string::npos && parse_integer(label.substr(at + 1), place) ? label.substr(0, at) : "";
}

// Scalars and lists below a node, by their paths there.
void add_leaves(const YAML::Node& node, const std::string& path, EntryParameters& leaves) {
  if (!node.IsDefined() || node.IsNull()) return;
  if (!node.IsMap()) {
    if (!path.empty()) leaves.emplace_back(path, yaml_on_one_line(node));
    return;
  }
  for (const auto& item : node) add_leaves(item.second, path + (path.empty() ? "" : ".") + item.first.Scalar(), leaves);
}

// One entry of a list, as a run has it.
struct ListEntry {
  std::string label, path;  // of the list, as "scheduler"
  EntryParameters leaves{};
  std::map<std::string, std::string> defaults{};
  std::set<std::string> axes{};  // keys that are lists of their own here

  [[nodiscard]] std::string value_of(const std::string& key) const {
    for (const auto& [leaf, value] : leaves)
      if (leaf == key) return value;
    const auto found = defaults.find(path + "." + key);
    return found == defaults.end() ? "" : found->second;
  }
};

ListEntry read_entry(const View& view, std::size_t axis, const ViewRow& row) {
  const RunSettings settings = read_run_settings(row.run);
  const std::string& column = view.axes[axis];
  ListEntry entry{row.labels[axis], axis_column("block_caches") == column ? "block_caches" : column};
  entry.defaults = settings.defaults;
  add_leaves(node_at(settings.tree, entry.path), "", entry.leaves);
  for (std::size_t a = 0; a < view.axes.size(); ++a)
    if (!row.labels[a].empty() && view.axes[a].starts_with(entry.path + ".")) entry.axes.insert(view.axes[a].substr(entry.path.size() + 1));
  return entry;
}

// Keys whose values differ among the entries, in the order of the file.
std::vector<std::string> differing_keys(const std::vector<ListEntry>& entries) {
  std::vector<std::string> keys;
  for (const ListEntry& entry : entries)
    for (const auto& [key, value] : entry.leaves) {
      const std::string first = entries.front().value_of(key);
      const bool differs =
          std::any_of(entries.begin(), entries.end(), [&, key = key](const ListEntry& e) { return e.value_of(key) != first; });
      if (differs && std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  return keys;
}

// The last part of a key where no other key ends in it.
std::string short_key(const std::string& key, const std::vector<std::string>& keys) {
  const auto last = [](const std::string& path) { return path.substr(path.rfind('.') + 1); };
  const auto same = std::count_if(keys.begin(), keys.end(), [&](const std::string& other) { return last(other) == last(key); });
  return same == 1 ? last(key) : key;
}

// The parameters of each entry; none where two entries would have the same.
std::map<std::string, EntryParameters> parameters_of(const std::vector<ListEntry>& entries) {
  const std::vector<std::string> keys = differing_keys(entries);
  std::map<std::string, EntryParameters> found;
  std::set<EntryParameters> seen;
  for (const ListEntry& entry : entries) {
    EntryParameters own;
    for (const std::string& key : keys)
      if (const std::string value = entry.value_of(key); !value.empty() && !entry.axes.contains(key))
        own.emplace_back(short_key(key, keys), value);
    if (!own.empty() && !seen.insert(own).second) return {};
    found[entry.label] = std::move(own);
  }
  return found;
}

}  // namespace

EntryLabels::EntryLabels(const View& view) {
  for (std::size_t axis = 0; axis < view.axes.size(); ++axis) {
    std::map<std::pair<fs::path, std::string>, std::map<std::string, const ViewRow*>> groups;  // folder and policy -> label -> a run
    for (const ViewRow& row : view.rows)
      if (const std::string base = entry_base(row.labels[axis]); !base.empty())
        groups[{row.run.parent_path(), base}].emplace(row.labels[axis], &row);
    std::map<std::string, Parameters>& own = columns_[view.axes[axis]];
    std::set<std::string> unclear;
    for (const auto& [group, runs] : groups) {
      std::vector<ListEntry> entries;
      for (const auto& [label, row] : runs) entries.push_back(read_entry(view, axis, *row));
      for (auto& [label, parameters] : parameters_of(entries))
        if (const auto [known, is_new] = own.emplace(label, parameters); !is_new && known->second != parameters) unclear.insert(label);
    }
    std::erase_if(own, [&](const auto& one) { return one.second.empty() || unclear.contains(one.first); });
    if (own.empty()) columns_.erase(view.axes[axis]);
  }
}

EntryLabels EntryLabels::of_folder(const fs::path& folder) {
  EntryLabels labels;
  const auto manifest = read_json_object<nlohmann::ordered_json>(folder / "manifest.json");
  if (!manifest.contains("entries") || !manifest["entries"].is_object()) return labels;
  for (const auto& [column, entries] : manifest["entries"].items())
    for (const auto& [label, parameters] : entries.items())
      for (const auto& [key, value] : parameters.items())
        if (value.is_string()) labels.columns_[column][label].emplace_back(key, value.get<std::string>());
  return labels;
}

nlohmann::ordered_json EntryLabels::json() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [column, entries] : columns_)
    for (const auto& [label, parameters] : entries)
      for (const auto& [key, value] : parameters) all[column][label][key] = value;
  return all;
}

std::string EntryLabels::shown(const std::string& column, const std::string& label) const {
  const auto entries = columns_.find(column);
  if (entries == columns_.end()) return label;
  const auto found = entries->second.find(label);
  if (found == entries->second.end()) return label;
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
