#include "app/commands/cite.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "app/commands/describe.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/data_root.h"
#include "base/error.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

class BibLines {
 public:
  explicit BibLines(std::string name) : name_(std::move(name)) {}

  void read(const std::string& line) {
    ++number_;
    if (is_open_)
      read_inside(line);
    else if (!line.empty() && line[0] != '%')
      open(line);
  }

  std::vector<Reference> take() {
    if (is_open_) fail("the entry '" + entries_.back().key + "' has no closing '}'");
    return std::move(entries_);
  }

 private:
  void open(const std::string& line) {
    static const std::regex head("@([a-z]+)\\{([A-Za-z0-9_.:-]+),");
    std::smatch found;
    if (!std::regex_match(line, found, head)) fail("an entry begins with '@type{key,'");
    const std::string key = found[2];
    if (!keys_.insert(key).second) fail("the key '" + key + "' is there twice");
    entries_.push_back({found[1], key, {}});
    is_open_ = true;
  }

  void read_inside(const std::string& line) {
    static const std::regex field("  ([A-Za-z_]+) = \\{(.*)\\},?");
    if (line == "}") {
      is_open_ = false;
      return;
    }
    std::smatch found;
    if (!std::regex_match(line, found, field)) fail("a field is '  name = {value},' on one line");
    Reference& entry = entries_.back();
    if (!entry.field(found[1]).empty()) fail("the field '" + found[1].str() + "' is there twice");
    entry.fields.emplace_back(found[1], found[2]);
  }

  [[noreturn]] void fail(const std::string& what) const { throw InputError(fmt::format("{}:{}: {}", name_, number_, what)); }

  std::string name_;
  std::size_t number_ = 0;
  bool is_open_ = false;
  std::set<std::string> keys_;
  std::vector<Reference> entries_;
};

std::vector<std::string> arxiv_numbers(const std::string& source) {
  static const std::regex number("arXiv:([0-9]{4}\\.[0-9]{4,5})");
  std::vector<std::string> found;
  for (auto at = std::sregex_iterator(source.begin(), source.end(), number); at != std::sregex_iterator(); ++at) found.push_back((*at)[1]);
  return found;
}

struct Cited {
  std::string kind, name;
  bool operator<(const Cited& other) const { return std::tie(kind, name) < std::tie(other.kind, other.name); }
};

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

// A word, the key of {name: {parameters}}, or those in a list.
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

// resolved.yaml has defaults as comments: "#   order: fcfs".
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

std::string tex(const std::string& text) {
  std::string out;
  for (const char c : text) out += std::string("&%$#_{}").find(c) != std::string::npos ? std::string("\\") + c : std::string(1, c);
  return out;
}

std::string unverified(const Cited& cited, const std::string& source, const std::string& eprint) {
  const std::string key = eprint.empty() ? fmt::format("kvlab_{}_{}", cited.kind, cited.name) : "arxiv" + eprint;
  const std::string fields = eprint.empty() ? "" : fmt::format("  eprint = {{{}}},\n  archivePrefix = {{arXiv}},\n", eprint);
  return fmt::format("@misc{{{},\n  title = {{{{{}}}}},\n{}  note = {{unverified; {} in KVLab{}}}\n}}", key, tex(cited.name), fields,
                     cited.kind == "kv" ? "KV policy" : tex(cited.kind), source.empty() ? "" : ", whose card says: " + tex(source));
}

// Distinct entries with their use.
class Bibliography {
 public:
  void add(const Cited& cited, const std::string& source) {
    const std::vector<const Reference*> known = references_.cited_in(source);
    const std::vector<std::string> unknown = references_.unknown_numbers(source);
    const std::string reason = references_.why_no_paper(cited.kind, cited.name);
    for (const Reference* entry : known) add_entry(entry->text(), cited);
    for (const std::string& number : unknown) add_entry(unverified(cited, source, number), cited);
    if (!known.empty() || !unknown.empty()) return;
    if (reason.empty())
      add_entry(unverified(cited, source, ""), cited);
    else
      without_paper_.insert(fmt::format("% {} ({}): no paper; {}\n", cited.name, cited.kind, reason));
  }

  void add_entry(const std::string& text, const Cited& cited) {
    const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first == text; });
    std::vector<std::string>& uses = at != entries_.end() ? at->second : entries_.emplace_back(text, std::vector<std::string>{}).second;
    if (std::find(uses.begin(), uses.end(), cited.name) == uses.end()) uses.push_back(cited.name);
  }

  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& [entry, uses] : entries_) all += fmt::format("% {}\n{}\n\n", fmt::join(uses, ", "), entry);
    return all + fmt::format("{}", fmt::join(without_paper_, ""));
  }

 private:
  References references_;
  std::vector<std::pair<std::string, std::vector<std::string>>> entries_;
  std::set<std::string> without_paper_;
};

std::string entry_of_kvlab() {
  const fs::path file = fs::path(profiles_folder()).parent_path() / "CITATION.cff";
  const YAML::Node cff = load_config(file.string())->root;
  std::string authors;
  for (const auto& author : cff["authors"]) authors += (authors.empty() ? "{" : " and {") + author["name"].Scalar() + "}";
  return fmt::format(
      "@misc{{kvlab,\n  author = {{{}}},\n  title = {{{{{}}}}},\n  year = {{{}}},\n  howpublished = {{Computer program}},\n"
      "  note = {{Version {}}}\n}}",
      authors, cff["title"].Scalar(), cff["date-released"].Scalar().substr(0, 4), cff["version"].Scalar());
}

// By hub id, else by its given name.
std::string entry_of_model(const std::string& name) {
  const fs::path table = fs::path(profiles_folder()) / "hugging_face.yaml";
  const YAML::Node ids = load_config(table.string())->root[name];
  const std::string id = ids.IsDefined() && ids.size() > 0 ? ids[0].Scalar() : name;
  const bool is_hub = id.find('/') != std::string::npos && ids.IsDefined();
  const std::string word = name.substr(name.rfind('/') + 1);  // sort key of BibTeX without an author
  return fmt::format("@misc{{model_{},\n  key = {{{}}},\n  title = {{{{{}}}}},\n  howpublished = {{{}}}\n}}", word, tex(word), tex(id),
                     is_hub ? "Hugging Face, \\url{https://huggingface.co/" + id + "}" : "model as named in the experiment");
}

class Cards {
 public:
  Cards() {
    for (const auto& [key, kind] : kinds_of_keys())
      if (!items_.contains(kind)) items_[kind] = list_items(kind);
  }

  // Models may lack a card.
  void add(const std::set<Cited>& used, Bibliography& all) const {
    for (const Cited& cited : used) {
      if (cited.kind == "models") all.add_entry(entry_of_model(cited.name), cited);
      if (cited.kind == "models") continue;
      for (const Item& item : items_.at(cited.kind))
        if (item.name == cited.name) all.add(cited, item.source);
    }
  }

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

std::string Reference::field(const std::string& name) const {
  const auto at = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == name; });
  return at == fields.end() ? "" : at->second;
}

std::string Reference::text() const {
  std::string lines;
  for (const auto& [name, value] : fields)
    if (name != "cited_as") lines += fmt::format("{}  {} = {{{}}}", lines.empty() ? "" : ",\n", name, value);
  return fmt::format("@{}{{{},\n{}\n}}", type, key, lines);
}

std::vector<Reference> parse_references(const std::string& text, const std::string& name) {
  BibLines lines(name);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.read(line);
  return lines.take();
}

References::References() {
  const std::filesystem::path folder = std::filesystem::path(data_root()) / "policies";
  const std::string papers = (folder / "references.bib").string();
  references_ = parse_references(read_file(papers), papers);
  const std::shared_ptr<const ConfigFile> list = load_config((folder / "no_paper.yaml").string());
  for (const auto& kind : list->root) {
    if (!kind.second.IsMap()) throw InputError(place(list->name, kind.first.Mark()) + ": a kind has a mapping of names to reasons");
    for (const auto& item : kind.second) no_papers_[{kind.first.Scalar(), item.first.Scalar()}] = item.second.Scalar();
  }
}

std::vector<const Reference*> References::cited_in(const std::string& source) const {
  std::vector<const Reference*> cited;
  const auto add = [&](const Reference& entry) {
    if (std::find(cited.begin(), cited.end(), &entry) == cited.end()) cited.push_back(&entry);
  };
  for (const std::string& number : arxiv_numbers(source))
    for (const Reference& entry : references_)
      if (entry.field("eprint") == number) add(entry);
  for (const Reference& entry : references_) {
    const std::string words = entry.field("cited_as");
    if (!words.empty() && source.find(words) != std::string::npos) add(entry);
  }
  return cited;
}

std::vector<std::string> References::unknown_numbers(const std::string& source) const {
  std::vector<std::string> numbers = arxiv_numbers(source);
  std::erase_if(numbers, [&](const std::string& number) {
    return std::any_of(references_.begin(), references_.end(), [&](const Reference& e) { return e.field("eprint") == number; });
  });
  return numbers;
}

std::string References::why_no_paper(const std::string& kind, const std::string& name) const {
  const auto found = no_papers_.find({kind, name});
  return found == no_papers_.end() ? "" : found->second;
}

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
      describe_items(name);  // throws with suggestions
      throw InputError("'" + name + "' has no card with a source: cite takes results folders, policies, recipes, systems and models");
    }
    cards.add(cited, all);
  }
  return all.text();
}

}  // namespace kvlab
