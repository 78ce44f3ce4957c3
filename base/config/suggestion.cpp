#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <functional>
#include <iterator>

#include "base/text.h"

namespace kvlab {

namespace {

// Optimal string alignment: insertion, deletion, replacement, exchange of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::move(last);
    last = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::string without_separators(std::string_view text) { return join(lower_words(text), ""); }

std::string without_look_alikes(std::string_view text) {
  std::string out = without_separators(text);
  for (char& c : out) c = c == 'o' ? '0' : c == 'l' || c == 'i' ? '1' : c;
  return out;
}

// "instruct", "v0.3", "2507" in checkpoint names.
bool is_variant(const std::string& part) {
  constexpr std::array kVariants = {"instruct", "chat", "hf", "it", "base", "thinking"};
  if (std::find(kVariants.begin(), kVariants.end(), part) != kVariants.end()) return true;
  const bool is_date = part.size() == 4 && std::all_of(part.begin(), part.end(), is_digit);
  return is_date || (part.size() > 1 && part[0] == 'v' && is_digit(part[1]));
}

bool is_vendor(const std::string& part) {
  constexpr std::array kVendors = {"meta", "nvidia", "geforce", "tesla"};
  return std::find(kVendors.begin(), kVendors.end(), part) != kVendors.end();
}

// "meta-llama/Meta-Llama-3.1-8B-Instruct" -> "llama318b".
std::string core_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : lower_case(std::string(name.substr(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1))))
    if (c == '-' || c == ' ' || c == '_')
      parts.emplace_back();
    else
      parts.back() += c;
  while (parts.size() > 1 && is_variant(parts.back())) parts.pop_back();
  if (parts.size() > 1 && is_vendor(parts.front())) parts.erase(parts.begin());
  return without_separators(join(parts, "-"));
}

bool begins_with(const std::vector<std::string>& whole, const std::vector<std::string>& typed) {
  if (typed.empty() || typed.size() > whole.size() || join(typed, "").size() < 2) return false;
  if (!std::equal(typed.begin(), typed.end() - 1, whole.begin())) return false;
  const std::string &last = typed.back(), &there = whole[typed.size() - 1];
  return there == last || (there.starts_with(last) && !is_digit(last.back()));
}

std::vector<std::string> words_with_digits(std::string_view name) {
  std::vector<std::string> words = lower_words(name);
  std::erase_if(words, [](const std::string& word) { return std::none_of(word.begin(), word.end(), is_digit); });
  return words;
}

// Two letters: the second may differ. Longer: one letter, or a third of more than six.
bool is_near(std::string_view typed, std::string_view known, std::size_t distance) {
  if (typed.size() < 2) return false;
  if (typed.size() == 2) return distance <= 1 && typed[0] == known[0];
  return distance <= std::max<std::size_t>(1, typed.size() / 3);
}

std::vector<std::string> misspelled(std::string_view name, const std::vector<std::string>& known) {
  std::vector<std::string> best;
  std::size_t best_distance = name.size();
  const std::string typed = lower_case(std::string(name));
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(typed, lower_case(std::string(candidate)));
    if (candidate.empty() || distance > best_distance || !is_near(typed, lower_case(std::string(candidate)), distance)) continue;
    if (words_with_digits(name) != words_with_digits(candidate)) continue;
    if (distance < best_distance) best.clear();
    best.push_back(candidate);
    best_distance = distance;
  }
  return best;
}

std::string digits_of(std::string_view text) {
  std::string digits;
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits), is_digit);
  return digits;
}

// "h100x4" and "H100-SXM" begin with "h100"; "a100x" does not begin with "a10".
bool is_begun_by(const std::string& typed, const std::string& candidate) {
  return candidate.size() >= 3 && !digits_of(candidate).empty() && typed.size() > candidate.size() && typed.starts_with(candidate) &&
         !is_digit(typed[candidate.size()]);
}

// Wrong or missing letters after the first, equal digits: "vllm1" for "vllm_v1", not "gh200" for "h200".
bool has_same_digits(const std::string& typed, const std::string& candidate) {
  return typed.size() >= 5 && !candidate.empty() && typed[0] == candidate[0] && !digits_of(typed).empty() &&
         digits_of(typed) == digits_of(candidate) && edit_distance(typed, candidate) <= 1;
}

}  // namespace

std::vector<std::string> lower_words(std::string_view text) {
  std::vector<std::string> words;
  bool is_inside = false;
  for (const char c : lower_case(std::string(text))) {
    const bool is_part = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_part && !is_inside) words.emplace_back();
    if (is_part) words.back() += c;
    is_inside = is_part;
  }
  return words;
}

std::vector<std::string> names_within(std::string_view name, const std::vector<std::string>& known, std::size_t letters) {
  std::vector<std::string> near;
  for (const std::string& candidate : known)
    if (edit_distance(lower_case(std::string(name)), lower_case(std::string(candidate))) <= letters) near.push_back(candidate);
  return near;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::vector<std::string> meant_names(std::string_view name, const std::vector<std::string>& known) {
  const auto those_where = [&](const std::function<bool(const std::string&)>& is_meant) {
    std::vector<std::string> names;
    std::copy_if(known.begin(), known.end(), std::back_inserter(names), is_meant);
    return names;
  };
  for (std::string (*form)(std::string_view) : {without_separators, core_of, without_look_alikes}) {
    const std::string typed = form(name);
    std::vector<std::string> same = those_where([&](const std::string& candidate) { return !typed.empty() && form(candidate) == typed; });
    if (!same.empty()) return same;
  }
  const std::vector<std::string> typed = lower_words(name);
  std::vector<std::string> longer = those_where([&](const std::string& candidate) { return begins_with(lower_words(candidate), typed); });
  constexpr std::size_t kMost = 8;  // more names with one beginning are ambiguous
  if (!longer.empty() && longer.size() <= kMost) return longer;
  const std::vector<std::string> near = misspelled(name, known);
  if (!near.empty()) return near;
  const std::string letters = without_separators(name);
  for (bool (*is_meant)(const std::string&, const std::string&) : {has_same_digits, is_begun_by}) {
    const std::vector<std::string> meant = those_where([&](const std::string& c) { return is_meant(letters, without_separators(c)); });
    if (!meant.empty() && meant.size() <= kMost) return meant;
  }
  return {};
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) { return offer_of(meant_names(name, known)); }

std::string offer_of(const std::vector<std::string>& meant) {
  if (meant.empty()) return "";
  std::string text = "; did you mean '" + meant.front() + "'";
  for (std::size_t i = 1; i < meant.size(); ++i) text += (i + 1 < meant.size() ? ", '" : " or '") + meant[i] + "'";
  return text + "?";
}

std::string suggestion(std::string_view name, const std::vector<std::string>& known) {
  const std::string meant = did_you_mean(name, known);
  if (!meant.empty() || known.empty()) return meant;
  return "; known: " + join(known, ", ");
}

}  // namespace kvlab
