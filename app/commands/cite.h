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

// Takes "@type{key,", "  name = {value}," per field, "}"; between entries, empty lines or lines that begin with '%'. Throws InputError for
// other lines and duplicate keys or fields.
std::vector<Reference> parse_references(const std::string& text, const std::string& name);

// policies/references.bib, and policies/no_paper.yaml: cards without a paper.
class References {
 public:
  References();  // throws InputError if a file cannot be read

  // By the arXiv numbers in a card's source, then by `cited_as` in it, without repetition.
  [[nodiscard]] std::vector<const Reference*> cited_in(const std::string& source) const;
  // arXiv numbers without an entry.
  [[nodiscard]] std::vector<std::string> unknown_numbers(const std::string& source) const;
  // "": it has one. kind: of `kvlab list`.
  [[nodiscard]] std::string why_no_paper(const std::string& kind, const std::string& name) const;

  [[nodiscard]] const std::vector<Reference>& all() const { return references_; }
  [[nodiscard]] const std::map<std::pair<std::string, std::string>, std::string>& no_papers() const { return no_papers_; }

 private:
  std::vector<Reference> references_;
  std::map<std::pair<std::string, std::string>, std::string> no_papers_;
};

// KVLab (CITATION.cff) and all that results folders, or the named policies, use, from policies/references.bib by arXiv number; other
// sources become @misc marked unverified. Throws InputError for an unknown name.
std::string citations(const std::vector<std::string>& names);

std::vector<std::string> cited_kinds();

}  // namespace kvlab
