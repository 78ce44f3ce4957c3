#pragma once

#include <string>

namespace kvlab {

// Quotes text for a POSIX shell.
inline std::string shell_word(const std::string& text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

}  // namespace kvlab
