#include "app/runs/sweep/joined_texts.h"

#include <algorithm>

#include "app/runs/report/known_metrics.h"
#include "base/text.h"

namespace kvlab {

namespace {

// With the punctuation around it.
struct Bare {
  std::string before, word, after;
};
Bare bare(const std::string& word) {
  const std::size_t begin = std::min(word.find_first_not_of("(['"), word.size());
  const std::size_t last = word.find_last_not_of(",;:.)]'");
  const std::size_t end = last == std::string::npos || last < begin ? begin : last + 1;
  return {word.substr(0, begin), word.substr(begin, end - begin), word.substr(end)};
}

// "2 to 8", "A100|H100|H200".
std::string joined_words(const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  constexpr std::size_t kMostNamed = 4;
  const Bare first = bare(words[0]);
  std::vector<std::string> texts;
  double least = 0, most = 0;
  std::string low, high;
  bool are_numbers = true;
  for (const std::string& word : words) {
    const Bare b = bare(word);
    double value = 0;
    are_numbers = are_numbers && parse_real(b.word, value);
    if (texts.empty() || value < least) least = value, low = b.word;
    if (texts.empty() || value > most) most = value, high = b.word;
    texts.push_back(b.word);
  }
  if (are_numbers) return first.before + low + " to " + high + first.after;
  if (texts.size() > kMostNamed) texts.resize(kMostNamed), texts.emplace_back("...");
  return first.before + join(texts, "|") + first.after;
}

bool is_alike(const std::vector<std::vector<std::string>>& group, const std::vector<std::string>& words) {
  if (group.size() != words.size()) return false;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < words.size(); ++i) equal += group[i][0] == words[i] ? 1 : 0;
  constexpr std::size_t kFewWords = 6;  // in a short text each word matters
  return equal == words.size() || (words.size() >= kFewWords && 3 * equal >= 2 * words.size());
}

}  // namespace

std::size_t JoinedTexts::add(const std::string& text) {
  const std::vector<std::string> words = words_in(text);
  std::size_t at = 0;
  while (at < groups_.size() && !is_alike(groups_[at], words)) ++at;
  if (at == groups_.size()) groups_.emplace_back(words.size());
  Group& group = groups_[at];
  for (std::size_t i = 0; i < words.size(); ++i)
    if (std::find(group[i].begin(), group[i].end(), words[i]) == group[i].end()) group[i].push_back(words[i]);
  return at;
}

std::string JoinedTexts::text(std::size_t group) const {
  std::vector<std::string> words;
  for (const auto& place : groups_[group]) words.push_back(joined_words(place));
  return join(words, " ");
}

}  // namespace kvlab
