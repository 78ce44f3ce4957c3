#include "app/commands/references.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "base/config/config_file.h"
#include "base/data_root.h"
#include "base/error.h"
#include "base/read_file.h"

namespace kvlab {

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

}  // namespace kvlab
