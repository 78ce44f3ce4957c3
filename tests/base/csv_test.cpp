#include "base/csv.h"

#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kvlab {
namespace {

TEST(Csv, QuotedFieldsComeBack) {
  const std::vector<std::string> fields = {"a", "", "b,c", "say \"x\"", "two\nlines", " 1 "};
  EXPECT_EQ(parse_csv(csv_line({"1", "2", "3", "4", "5", "6"}) + csv_line(fields), "t").rows,
            (std::vector<std::vector<std::string>>{fields}));
}

TEST(Csv, WhatASpreadsheetWouldComputeIsText) {
  const std::vector<std::string> fields = {"=1+1", "+x", "-x", "@x", "-1.5", "+2", "-", "'=1", "'a", "=a,\"b\""};
  EXPECT_EQ(csv_line(fields), "'=1+1,'+x,'-x,'@x,-1.5,+2,'-,''=1,'a,\"'=a,\"\"b\"\"\"\n");
  EXPECT_EQ(parse_csv("1,2,3,4,5,6,7,8,9,10\n" + csv_line(fields), "t").rows[0], fields);
}

TEST(Csv, CarriageReturnsAndAMissingLastLineEnd) {
  EXPECT_EQ(parse_csv("a,b\r\n1,2\r\n3,4", "t").rows, (std::vector<std::vector<std::string>>{{"1", "2"}, {"3", "4"}}));
}

std::string csv_error(const std::string& text) {
  return error_of([&] { static_cast<void>(parse_csv(text, "t.csv").at("a")); });
}

TEST(Csv, Errors) {
  EXPECT_EQ(csv_error(""), "t.csv: empty file; a header line is expected");
  EXPECT_EQ(csv_error("a,b\n1,2\n1\n"), "t.csv:3: has 1 fields where the header has 2");
  EXPECT_EQ(csv_error("a\n\"x\n"), "t.csv:2: a quote is never closed");
  EXPECT_EQ(csv_error("aa\n1\n"), "t.csv:1: has no column 'a'; known: aa");
}

TEST(ShortNumber, KeepsAboutFourDigits) {
  const std::pair<double, const char*> cases[] = {{0, "0"},          {1234567.8, "1,234,568"}, {-1234.2, "-1,234"},
                                                  {999.94, "999.9"}, {0.5, "0.500"},           {12.3456, "12.35"}};
  for (const auto& [x, text] : cases) EXPECT_EQ(short_number(x), text);
  for (const std::string text : {"", "derived"}) EXPECT_EQ(short_number(text), text);
}

}  // namespace
}  // namespace kvlab
