#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

struct Reference {
  std::string type, key;                                    // "inproceedings", "kwon2023efficient"
  std::vector<std::pair<std::string, std::string>> fields;  // in order, without outer braces

  [[nodiscard]] std::string field(const std::string& name) const;  // "" if absent
  [[nodiscard]] std::string text() const;                          // BibTeX, without `cited_as`
};

// Parses BibTeX in the form of policies/references.bib: "@type{key,", "  name = {value}," per field, "}"; between entries, empty lines or
// lines that begin with '%'. Throws InputError with name:line for other lines and duplicate keys or fields.
std::vector<Reference> parse_references(const std::string& text, const std::string& name);

// Papers that cards cite (policies/references.bib), and cards without a paper (policies/no_paper.yaml).
class References {
 public:
  References();  // Throws InputError if a file cannot be read.

  // Entries for the arXiv numbers in a card's source, then those whose `cited_as` it contains, without repetition.
  [[nodiscard]] std::vector<const Reference*> cited_in(const std::string& source) const;
  // arXiv numbers in a card's source without an entry.
  [[nodiscard]] std::vector<std::string> unknown_numbers(const std::string& source) const;
  // Why the card has no paper, or "". kind: of `kvlab list`.
  [[nodiscard]] std::string why_no_paper(const std::string& kind, const std::string& name) const;

  [[nodiscard]] const std::vector<Reference>& all() const { return references_; }
  [[nodiscard]] const std::map<std::pair<std::string, std::string>, std::string>& no_papers() const { return no_papers_; }

 private:
  std::vector<Reference> references_;
  std::map<std::pair<std::string, std::string>, std::string> no_papers_;
};

}  // namespace kvlab
