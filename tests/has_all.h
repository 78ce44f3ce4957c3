#pragma once

#include <gmock/gmock.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace kvlab {

using ::testing::HasSubstr;

// Matches a text that contains each of `parts`.
inline ::testing::Matcher<std::string> has_all(std::initializer_list<std::string> parts) {
  std::vector<::testing::Matcher<std::string>> all;
  for (const std::string& part : parts) all.emplace_back(HasSubstr(part));
  return ::testing::AllOfArray(all);
}

}  // namespace kvlab
