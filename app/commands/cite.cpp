#include "app/commands/cite.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "app/commands/describe.h"
#include "base/config_file.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/spec_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// Something that is cited: a policy, recipe, system, trace format or model.
struct Cited {
  std::string kind, name;
  bool operator<(const Cited& other) const { return std::tie(kind, name) < std::tie(other.kind, other.name); }
};

// Kinds of `kvlab list` by the key of an experiment that names one of them.
const std::map<std::string, std::string>& kinds_of_keys() {
  static const std::map<std::string, std::string> kinds = {{"scheduler", "schedulers"},
                                                           {"order", "orders"},
                                                           {"predictor", "predictors"},
                                                           {"dispatcher", "dispatchers"},
                                                           {"router", "dispatchers"},
                                                           {"system", "systems"},
                                                           {"block_cache", "block_caches"},
                                                           {"block_caches", "block_caches"},
                                                           {"kv_policy", "kv"},
                                                           {"recipe", "kv"},
                                                           {"model", "models"},
                                                           {"format", "trace_formats"}};
  return kinds;
}

// The names in a value: a word, the key of {name: {parameters}}, or those of a list.
void add_names(const YAML::Node& value, const std::string& kind, std::set<Cited>& used) {
  if (value.IsScalar()) used.insert({kind, value.Scalar()});
  if (value.IsSequence())
    for (const auto& item : value) add_names(item, kind, used);
  if (value.IsMap() && kind != "kv" && value.size() == 1) used.insert({kind, value.begin()->first.Scalar()});
}

void find_used(const YAML::Node& node, std::set<Cited>& used) {
  if (node.IsSequence())
    for (const auto& item : node) find_used(item, used);
  if (!node.IsMap()) return;
  for (const auto& item : node) {
    const auto kind = kinds_of_keys().find(item.first.Scalar());
    if (kind != kinds_of_keys().end()) add_names(item.second, kind->second, used);
    find_used(item.second, used);
  }
}

// Defaults are comments in the resolved.yaml of a run: "#   order: fcfs".
void find_defaults(const std::string& text, std::set<Cited>& used) {
  static const std::regex line("#\\s+([a-z_]+): (\\S+)\\s*");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), line); at != std::sregex_iterator(); ++at) {
    const auto kind = kinds_of_keys().find((*at)[1]);
    if (kind != kinds_of_keys().end()) used.insert({kind->second, (*at)[2]});
  }
}

std::set<Cited> used_by(const fs::path& folder) {
  std::set<Cited> used;
  const fs::path resolved = folder / "resolved.yaml";
  if (!fs::exists(resolved)) throw InputError(folder.string() + ": is no results folder: it has no resolved.yaml");
  find_used(load_config(resolved.string())->root, used);
  std::error_code error;
  for (const auto& run : fs::directory_iterator(folder / "runs", error)) find_defaults(read_if_there(run.path() / "resolved.yaml"), used);
  return used;
}

// One entry of a BibTeX file.
struct BibEntry {
  std::string key, text, eprint, cited_as;
};

std::string field_of(const std::string& entry, const std::string& name) {
  const std::size_t at = entry.find("\n  " + name + " = {");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 7;
  return entry.substr(begin, entry.find_first_of("}\n", begin) - begin);
}

// Entries begin with '@' at a line's start.
std::vector<BibEntry> read_references() {
  const fs::path file = fs::path(recipes_folder()).parent_path().parent_path() / "references.bib";
  const std::string text = "\n" + read_file(file.string());
  std::vector<BibEntry> entries;
  for (std::size_t at = text.find("\n@"); at != std::string::npos;) {
    const std::size_t next = text.find("\n@", at + 1);
    std::string entry = text.substr(at + 1, next - at - 1);
    while (!entry.empty() && entry.back() == '\n') entry.pop_back();
    const std::size_t open = entry.find('{') + 1;
    entries.push_back({entry.substr(open, entry.find(',') - open), entry, field_of(entry, "eprint"), field_of(entry, "cited_as")});
    at = next;
  }
  return entries;
}

std::string tex(const std::string& text) {
  std::string out;
  for (const char c : text) out += std::string("&%$#_{}").find(c) != std::string::npos ? std::string("\\") + c : std::string(1, c);
  return out;
}

std::string unverified(const std::string& key, const Cited& cited, const std::string& source, const std::string& eprint) {
  std::string fields = eprint.empty() ? "" : fmt::format("  eprint = {{{}}},\n  archivePrefix = {{arXiv}},\n", eprint);
  return fmt::format("@misc{{{},\n  title = {{{{{}}}}},\n{}  note = {{unverified; {} in KVLab{}}}\n}}", key, tex(cited.name), fields,
                     cited.kind == "kv" ? "KV policy" : tex(cited.kind), source.empty() ? "" : ", whose card says: " + tex(source));
}

// Collects entries, each once, with what they are cited for.
class Bibliography {
 public:
  void add(const Cited& cited, const std::string& source) {
    static const std::regex arxiv("arXiv:([0-9]{4}\\.[0-9]{4,5})");
    bool is_found = false;
    for (auto at = std::sregex_iterator(source.begin(), source.end(), arxiv); at != std::sregex_iterator(); ++at) {
      const std::string number = (*at)[1];
      const auto known = std::find_if(references_.begin(), references_.end(), [&](const BibEntry& e) { return e.eprint == number; });
      if (known != references_.end())
        add_entry(known->text, cited);
      else
        add_entry(unverified("arxiv" + number, cited, source, number), cited);
      is_found = true;
    }
    for (const BibEntry& e : references_) {
      if (e.cited_as.empty() || source.find(e.cited_as) == std::string::npos) continue;
      add_entry(e.text, cited);
      is_found = true;
    }
    if (!is_found) add_entry(unverified("kvlab_" + cited.name, cited, source, ""), cited);
  }

  void add_entry(const std::string& text, const Cited& cited) {
    const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first == text; });
    std::vector<std::string>& uses = at != entries_.end() ? at->second : entries_.emplace_back(text, std::vector<std::string>{}).second;
    if (std::find(uses.begin(), uses.end(), cited.name) == uses.end()) uses.push_back(cited.name);
  }

  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& [entry, uses] : entries_) all += fmt::format("% {}\n{}\n\n", fmt::join(uses, ", "), entry);
    return all;
  }

 private:
  std::vector<BibEntry> references_ = read_references();
  std::vector<std::pair<std::string, std::vector<std::string>>> entries_;
};

std::string entry_of_kvlab() {
  const fs::path file = fs::path(profiles_folder()).parent_path() / "CITATION.cff";
  const YAML::Node cff = load_config(file.string())->root;
  std::string authors;
  for (const auto& author : cff["authors"]) authors += (authors.empty() ? "{" : " and {") + author["name"].Scalar() + "}";
  return fmt::format("@software{{kvlab,\n  author = {{{}}},\n  title = {{{{{}}}}},\n  version = {{{}}}\n}}", authors, cff["title"].Scalar(),
                     cff["version"].Scalar());
}

// A model by its id on the Hugging Face hub; as it is named where that is not known.
std::string entry_of_model(const std::string& name) {
  const fs::path table = fs::path(profiles_folder()) / "hugging_face.yaml";
  const YAML::Node ids = load_config(table.string())->root[name];
  const std::string id = ids.IsDefined() && ids.size() > 0 ? ids[0].Scalar() : name;
  const bool is_hub = id.find('/') != std::string::npos && ids.IsDefined();
  return fmt::format("@misc{{model_{},\n  title = {{{{{}}}}},\n  howpublished = {{{}}}\n}}", name.substr(name.rfind('/') + 1), tex(id),
                     is_hub ? "Hugging Face, \\url{https://huggingface.co/" + id + "}" : "model as named in the experiment");
}

// Cards of everything that can be cited, read once.
class Cards {
 public:
  Cards() {
    for (const auto& [key, kind] : kinds_of_keys())
      if (!items_.contains(kind)) items_[kind] = list_items(kind);
  }

  // Adds what these names are the cards of; a model need not have one.
  void add(const std::set<Cited>& used, Bibliography& all) const {
    for (const Cited& cited : used) {
      if (cited.kind == "models") all.add_entry(entry_of_model(cited.name), cited);
      if (cited.kind == "models") continue;
      for (const Item& item : items_.at(cited.kind))
        if (item.name == cited.name) all.add(cited, item.source);
    }
  }

  // The kinds in which a card has this name.
  [[nodiscard]] std::set<Cited> named(const std::string& name) const {
    std::set<Cited> found;
    for (const auto& [kind, items] : items_)
      for (const Item& item : items)
        if (item.name == name) found.insert({kind, name});
    return found;
  }

 private:
  std::map<std::string, std::vector<Item>> items_;
};

}  // namespace

std::vector<std::string> cited_kinds() {
  std::set<std::string> kinds;
  for (const auto& [key, kind] : kinds_of_keys()) kinds.insert(kind);
  return {kinds.begin(), kinds.end()};
}

std::string citations(const std::vector<std::string>& names) {
  Bibliography all;
  all.add_entry(entry_of_kvlab(), {"", "KVLab"});
  const Cards cards;
  for (const std::string& name : names) {
    std::error_code error;
    const std::set<Cited> cited = fs::is_directory(name, error) ? used_by(name) : cards.named(name);
    if (cited.empty() && !fs::is_directory(name, error)) {
      describe_items(name);  // suggests names
      throw InputError("'" + name + "' has no card with a source: cite takes results folders, policies, recipes, systems and models");
    }
    cards.add(cited, all);
  }
  return all.text();
}

}  // namespace kvlab
