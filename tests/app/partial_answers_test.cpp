#include <gtest/gtest.h>

#include <fstream>

#include "app/runs/accuracy/accuracy.h"
#include "base/read_file.h"
#include "tests/test_files.h"

namespace kvlab {
namespace {

SampleGrades graded(std::int32_t number) {
  SampleGrades sample;
  for (std::int32_t turn = 0; turn < 3; ++turn) {
    GradedAnswer a;
    a.sample = number, a.turn = turn, a.tokens = 7, a.bytes = 9, a.first_wrong = turn - 1, a.first_diverging = 2, a.agreeing = 5;
    a.is_full_exact = turn != 1, a.bits = 1.0 / 3, a.kl_nats = 1e-9, a.resident_bytes_frac = 0.25;
    sample.answers.push_back(a);
  }
  Fidelity f;
  f.attention_mass = 0.1, f.output_rel_err = 0.2, f.topk_recall = 0.3, f.kl = 0.4;
  f.far_mass = 0.5, f.far_mass_kept = 0.6, f.needle_mass = 0.7, f.needle_mass_kept = 1.0 / 7;
  sample.replayed = f;
  sample.found = {true, std::nullopt, false};
  return sample;
}

struct PartialAnswersFile : ::testing::Test {
  const TempFolder folder_;
  const std::string file_ = folder_.file("0001.txt");
};

TEST_F(PartialAnswersFile, GivesBackWhatWasGraded) {
  SampleGrades plain = graded(8);
  plain.replayed.reset(), plain.found.clear();
  {
    PartialAnswers answers(file_);
    answers.add(graded(4));
    answers.add(plain);
  }
  const PartialAnswers again(file_);
  ASSERT_EQ(again.by_sample().size(), 2U);
  const SampleGrades &known = again.by_sample().at(4), expected = graded(4);
  ASSERT_EQ(known.answers.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const GradedAnswer &a = known.answers[i], &b = expected.answers[i];
    EXPECT_EQ(std::tie(a.sample, a.turn, a.tokens, a.bytes, a.first_wrong, a.first_diverging, a.agreeing, a.is_full_exact),
              std::tie(b.sample, b.turn, b.tokens, b.bytes, b.first_wrong, b.first_diverging, b.agreeing, b.is_full_exact));
    EXPECT_EQ(std::tie(a.bits, a.kl_nats, a.resident_bytes_frac), std::tie(b.bits, b.kl_nats, b.resident_bytes_frac));
  }
  ASSERT_TRUE(known.replayed);
  EXPECT_EQ(std::tuple(known.replayed->attention_mass, known.replayed->needle_mass_kept), std::tuple(0.1, 1.0 / 7));
  EXPECT_EQ(known.found, expected.found);
  EXPECT_FALSE(again.by_sample().at(8).replayed);
  EXPECT_TRUE(again.by_sample().at(8).found.empty());
}

TEST_F(PartialAnswersFile, LinesThatWereCutOffAreGradedAgain) {
  {
    PartialAnswers answers(file_);
    answers.add(graded(4));
    answers.add(graded(5));
  }
  const std::string whole = read_file(file_);
  const std::size_t second = whole.find('\n') + 1;
  for (std::size_t end = second; end < whole.size() - 1; ++end) {
    std::ofstream(file_) << whole.substr(0, end);
    PartialAnswers again(file_);
    EXPECT_EQ(again.by_sample().count(4), 1U);
    EXPECT_EQ(again.by_sample().count(5), 0U) << whole.substr(second, end - second);
    again.add(graded(6));  // begins a line of its own
    const PartialAnswers third(file_);
    ASSERT_EQ(third.by_sample().size(), 2U) << whole.substr(second, end - second);
    EXPECT_EQ(third.by_sample().count(6), 1U);
  }
}

}  // namespace
}  // namespace kvlab
