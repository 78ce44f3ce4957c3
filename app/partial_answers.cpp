#include "app/partial_answers.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "base/error.h"

namespace kvlab {

namespace {

// One line per sample: its number, the number of its answers, the answers, "end".
std::string line_of(std::span<const GradedAnswer> answers) {
  std::string line = fmt::format("{} {}", answers.front().sample, answers.size());
  for (const GradedAnswer& a : answers)
    line += fmt::format(" {} {} {} {} {} {} {} {:.17g} {:.17g} {:.17g}", a.turn, a.tokens, a.bytes, a.first_wrong, a.first_diverging,
                        a.agreeing, a.is_full_exact ? 1 : 0, a.bits, a.kl_nats, a.resident_bytes_frac);
  return line + " end\n";
}

std::vector<GradedAnswer> read_line(const std::string& line) {
  std::istringstream in(line);
  std::int32_t sample = 0, count = 0;
  std::vector<GradedAnswer> answers;
  if (!(in >> sample >> count)) return {};
  for (std::int32_t i = 0; i < count; ++i) {
    GradedAnswer a;
    a.sample = sample;
    if (!(in >> a.turn >> a.tokens >> a.bytes >> a.first_wrong >> a.first_diverging >> a.agreeing >> a.is_full_exact >> a.bits >>
          a.kl_nats >> a.resident_bytes_frac))
      return {};
    answers.push_back(a);
  }
  std::string end;
  return in >> end && end == "end" ? answers : std::vector<GradedAnswer>{};
}

}  // namespace

PartialAnswers::PartialAnswers(std::filesystem::path file) : file_(std::move(file)) {
  std::ifstream stream(file_);
  for (std::string line; std::getline(stream, line);) {
    std::vector<GradedAnswer> answers = read_line(line);
    if (!answers.empty()) by_sample_[answers.front().sample] = std::move(answers);
  }
}

void PartialAnswers::add(std::span<const GradedAnswer> answers) {
  std::string text;
  for (std::size_t i = 0; i < answers.size();) {
    std::size_t end = i;
    while (end < answers.size() && answers[end].sample == answers[i].sample) ++end;
    text += line_of(answers.subspan(i, end - i));
    by_sample_[answers[i].sample].assign(answers.begin() + static_cast<std::ptrdiff_t>(i),
                                         answers.begin() + static_cast<std::ptrdiff_t>(end));
    i = end;
  }
  std::filesystem::create_directories(file_.parent_path());
  std::ofstream stream(file_, std::ios::app);
  stream << text << std::flush;
  if (!stream) throw InputError(file_.string() + ": cannot be written");
}

void PartialAnswers::remove_file() const {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
  std::filesystem::remove(file_.parent_path(), ignored);  // where it is empty
}

}  // namespace kvlab
