// Sentences of several runs as one, the answer of a search for hardware, and the price that is taken away.
#include <gtest/gtest.h>

#include "app/runs/report/report.h"
#include "app/runs/report/summary_row.h"

namespace kvlab {
namespace {

std::vector<std::string> joined(const std::vector<std::string>& texts) {
  JoinedTexts all;
  for (const std::string& text : texts) all.add(text);
  std::vector<std::string> found;
  for (std::size_t i = 0; i < all.size(); ++i) found.push_back(all.text(i));
  return found;
}

TEST(Joined, NumbersAreARangeAndNamesAreListed) {
  EXPECT_EQ(joined({"about 8 % of step time is by A100 at tp 2", "about 12.5 % of step time is by H100 at tp 4",
                    "about 9 % of step time is by A100 at tp 8"}),
            std::vector<std::string>{"about 8 to 12.5 % of step time is by A100|H100 at tp 2 to 8"});
  EXPECT_EQ(joined({"one two three four five (6), seven", "one two three four five (11), seven"}),
            std::vector<std::string>{"one two three four five (6 to 11), seven"});
}

TEST(Joined, OtherSentencesStayApart) {
  EXPECT_EQ(joined({"no price", "no energy"}).size(), 2U) << "in short ones each word counts";
  EXPECT_EQ(joined({"a b c d e f", "a b c x y z"}).size(), 2U) << "less than two thirds are equal";
  EXPECT_EQ(joined({"a b c d e f", "a b c d e f g"}).size(), 2U) << "of another length";
  EXPECT_EQ(joined({"the same", "the same"}), std::vector<std::string>{"the same"});
}

TEST(Joined, OfManyNamesAFewAreGiven) {
  std::vector<std::string> texts;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) texts.push_back(std::string("one two three four five card ") + name);
  EXPECT_EQ(joined(texts), std::vector<std::string>{"one two three four five card a|b|c|d|..."});
}

CsvTable sized() {
  return parse_csv(
      "run,hardware,search_replicas,gpus,dollars_per_million_tokens\n"
      "r1,h100,4,4,2.5\nr2,l40s,,8,\nr3,a10g,6,6,1.5\nr4,b200,2,2,2.5\n",
      "summary.csv");
}

TEST(Sizing, TheCheapestThatAttainsIsFirst) {
  CsvTable table = sized();
  const std::string line = put_answer_first(table, 1);
  EXPECT_EQ(table.rows[0][0], "r3");
  EXPECT_EQ(table.rows[1][0], "r4") << "of one price the fewer GPUs";
  EXPECT_EQ(table.rows[3][0], "r2") << "the one that does not attain is last";
  EXPECT_NE(line.find("hardware=a10g"), std::string::npos) << line;
}

TEST(Sizing, OfOneRowOrAnotherSearchNothingIsSorted) {
  CsvTable one = sized();
  one.rows.resize(1);
  EXPECT_EQ(put_answer_first(one, 1), "");
  CsvTable rates = parse_csv("run,hardware,search_rate_per_s\nr1,h100,1\nr2,l40s,2\n", "summary.csv");
  EXPECT_EQ(put_answer_first(rates, 1), "");
  EXPECT_EQ(rates.rows[0][0], "r1");
}

TEST(Price, IsTakenFromARunThatMissesItsSlo) {
  Bill bill;
  bill.energy_j = 5, bill.dollars_per_million_tokens = 2;
  take_price(bill);
  EXPECT_FALSE(bill.dollars_per_million_tokens.has_value());
  EXPECT_EQ(bill.energy_j, 5);
  EXPECT_EQ(bill.remark, "no price, since the SLO is not attained");
  take_price(bill);
  EXPECT_EQ(bill.remark, "no price, since the SLO is not attained") << "there is none to take";
  Bill other;
  other.remark = "no energy", other.dollars_per_million_tokens = 1;
  take_price(other);
  EXPECT_EQ(other.remark, "no energy; no price, since the SLO is not attained");
}

}  // namespace
}  // namespace kvlab
