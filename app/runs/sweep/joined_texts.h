#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvlab {

// Joins sentences of equal length in words of which at least two thirds are equal. Differing words become "21 to 67" or "A100|H100".
class JoinedTexts {
 public:
  std::size_t add(const std::string& text);
  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  [[nodiscard]] std::string text(std::size_t group) const;

 private:
  using Group = std::vector<std::vector<std::string>>;
  std::vector<Group> groups_;
};

}  // namespace kvlab
