#include "app/results/entry_labels.h"

#include <algorithm>
#include <set>
#include <utility>

#include "app/results/list_entries.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

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

// Last part if unique, else the key.
std::string short_key(const std::string& key, const std::vector<std::string>& keys) {
  const auto last = [](const std::string& path) { return path.substr(path.rfind('.') + 1); };
  const auto same = std::count_if(keys.begin(), keys.end(), [&](const std::string& other) { return last(other) == last(key); });
  return same == 1 ? last(key) : key;
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
        own.emplace_back(short_key(key, keys), value);
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
