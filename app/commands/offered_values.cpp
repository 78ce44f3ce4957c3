#include "app/commands/offered_values.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>

#include "app/commands/describe.h"
#include "app/results/results_info.h"
#include "app/schema/setting_words.h"
#include "base/csv.h"
#include "base/error.h"
#include "traces/public_traces.h"

namespace kvlab {

namespace {

using OfferedWords = std::vector<OfferedWord>;

std::vector<std::string> words_in(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

void add_items(const std::string& kind, const std::string& only, OfferedWords& all) {
  for (const Item& item : list_items(kind))
    if (only.empty() || item.kind == only) all.push_back({item.name, item.summary});
}

void add_names_of(const std::string& kind, OfferedWords& all) {
  if (kind == "recipes") {
    add_items("kv", "recipe", all);
  } else if (kind == "public_traces") {
    for (const PublicTrace& trace : read_public_traces(public_traces_list())) all.push_back({trace.name, trace.title});
  } else {
    add_items(kind, "", all);
  }
}

void add_results_folders(const std::string& before, OfferedWords& all) {
  for (const std::filesystem::path& folder : results_in(kResultsRoot).folders) all.push_back({before + folder.filename().string(), ""});
}

CsvTable summary_of(const WordsBefore& before) {
  if (before.arguments.empty()) throw InputError("no results folder is named yet");
  return read_csv(std::filesystem::path(before.arguments[0]) / "summary.csv");
}

// Between `run` and `seed` of summary.csv.
std::vector<std::size_t> axes_in(const CsvTable& summary) {
  std::vector<std::size_t> axes;
  for (std::size_t c = 1; c < summary.at("seed"); ++c) axes.push_back(c);
  return axes;
}

void add_column_names(const CsvTable& summary, bool of_axes, OfferedWords& all) {
  const std::size_t seed = summary.at("seed");
  for (std::size_t c = of_axes ? 1 : seed + 1; c < (of_axes ? seed : summary.columns.size()); ++c) all.push_back({summary.columns[c], ""});
}

// AXIS=, then AXIS=VALUE once an axis is typed.
void add_axis_values(const CsvTable& summary, const std::string& typed, OfferedWords& all) {
  const std::size_t equals = typed.find('=');
  for (const std::size_t axis : axes_in(summary)) {
    const std::string& name = summary.columns[axis];
    if (equals == std::string::npos) all.push_back({name + "=", ""});
    if (equals == std::string::npos || name != typed.substr(0, equals)) continue;
    std::set<std::string> values;
    for (const auto& row : summary.rows) values.insert(row[axis]);
    for (const std::string& value : values) all.push_back({name + "=" + value, ""});
  }
}

void add_run_ids(const CsvTable& summary, OfferedWords& all) {
  for (const auto& row : summary.rows) {
    std::string labels;
    for (const std::size_t axis : axes_in(summary)) labels += (labels.empty() ? "" : ", ") + row[axis];
    all.push_back({row[summary.at("run")], labels});
  }
}

void add_source(const Offered& offered, const std::string& typed, const WordsBefore& before, Completion& completion) {
  OfferedWords& all = completion.candidates;
  switch (offered.source) {
    case Offer::kNames:
      for (const std::string& kind : words_in(offered.of)) add_names_of(kind, all);
      return;
    case Offer::kWords:
      if (before.is_first_value)
        for (const std::string& word : words_in(offered.of)) all.push_back({word, ""});
      return;
    case Offer::kResults:
      completion.files = "folders";
      return add_results_folders(std::string(kResultsRoot) + "/", all);
    case Offer::kResultNames:
      return add_results_folders("", all);
    case Offer::kSettings:
      for (const auto& [word, help] : setting_words(offered.of, typed)) all.push_back({word, help});
      return;
    case Offer::kAxes:
      return add_column_names(summary_of(before), true, all);
    case Offer::kMetrics:
      return add_column_names(summary_of(before), false, all);
    case Offer::kAxisValues:
      return add_axis_values(summary_of(before), typed, all);
    case Offer::kRuns:
      return add_run_ids(summary_of(before), all);
    case Offer::kFiles:
      completion.files = "files";
      return;
    case Offer::kFolders:
      completion.files = "folders";
      return;
    case Offer::kYamlFiles:
      completion.files = "yaml";
      return;
    case Offer::kText:
      return;
  }
}

}  // namespace

void add_offered(const Offered& offered, const std::string& typed, const WordsBefore& before, Completion& completion) {
  try {
    add_source(offered, typed, before, completion);
  } catch (const InputError&) {  // unreadable file or no results folder: shells show no errors
  }
}

}  // namespace kvlab
