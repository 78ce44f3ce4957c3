#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// One entry of a BibTeX file.
struct Reference {
  std::string type, key;                                    // "inproceedings", "kwon2023efficient"
  std::vector<std::pair<std::string, std::string>> fields;  // in the file's order, values without their outer braces

  [[nodiscard]] std::string field(const std::string& name) const;  // "" if absent
  [[nodiscard]] std::string text() const;                          // BibTeX, without `cited_as`, which is for References alone
};

// The entries of BibTeX in the form of policies/references.bib: "@type{key,", then a line "  name = {value}," per field, then "}"; lines
// between entries are empty or begin with '%'. InputError with name:line for any other line, and for a key or field that is there twice.
std::vector<Reference> parse_references(const std::string& text, const std::string& name);

// The papers that cards cite (policies/references.bib), and the cards that no paper is cited for (policies/no_paper.yaml).
class References {
 public:
  References();  // InputError where one of the files cannot be read

  // Entries for the arXiv numbers in a card's source, then those whose `cited_as` the source contains; each once.
  [[nodiscard]] std::vector<const Reference*> cited_in(const std::string& source) const;
  // arXiv numbers in a card's source that no entry has.
  [[nodiscard]] std::vector<std::string> unknown_numbers(const std::string& source) const;
  // Why no paper is cited for a card, by the kind of `kvlab list`; "" if the list does not have it.
  [[nodiscard]] std::string why_no_paper(const std::string& kind, const std::string& name) const;

  [[nodiscard]] const std::vector<Reference>& all() const { return references_; }
  // Kind, name -> reason.
  [[nodiscard]] const std::map<std::pair<std::string, std::string>, std::string>& no_papers() const { return no_papers_; }

 private:
  std::vector<Reference> references_;
  std::map<std::pair<std::string, std::string>, std::string> no_papers_;
};

}  // namespace kvlab
