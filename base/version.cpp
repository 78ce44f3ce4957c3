#include "base/version.h"

#include <cctype>
#include <sstream>

#include "base/text.h"

namespace kvlab {

std::vector<int> version_numbers(const std::string& version) {
  std::vector<int> numbers;
  if (version.empty() || std::isdigit(static_cast<unsigned char>(version.front())) == 0) return numbers;
  std::istringstream text(version);
  for (std::string part; std::getline(text, part, '.');) {
    long long number = 0;
    parse_integer(part.substr(0, part.find_first_not_of("0123456789")), number);
    numbers.push_back(static_cast<int>(number));
  }
  while (!numbers.empty() && numbers.back() == 0) numbers.pop_back();
  return numbers;
}

}  // namespace kvlab
