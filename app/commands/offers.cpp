#include "app/commands/offers.h"

#include <algorithm>

namespace kvlab {

namespace {

Offered declared_by(const std::string& name) {
  std::size_t end = 0;
  const std::string declaration = name.substr(std::string(kOffersPrefix).size());
  const int source = std::stoi(declaration, &end);
  return {static_cast<Offer>(source), declaration.substr(end + 1)};
}

// CLI::IsMember's description is "{cpu,cuda}".
bool is_word_set(const std::string& description) { return description.starts_with('{') && description.ends_with('}'); }

std::string words_of_set(std::string description) {
  std::replace(description.begin(), description.end(), ',', ' ');
  return description.substr(1, description.size() - 2);
}

}  // namespace

std::vector<Offered> offers_of(CLI::Option& option) {
  std::vector<Offered> all;
  try {
    for (int i = 0;; ++i) {
      const CLI::Validator& check = *option.get_validator(i);
      if (check.get_name().starts_with(kOffersPrefix)) all.push_back(declared_by(check.get_name()));
      if (const std::string set = check.get_description(); is_word_set(set)) all.push_back({Offer::kWords, words_of_set(set)});
    }
  } catch (const CLI::OptionNotFound&) {  // past the last one
  }
  if (all.empty() && option.get_type_name().starts_with("TEXT")) all.push_back({Offer::kFiles, ""});
  return all;
}

}  // namespace kvlab
