#include "app/runs/accuracy/partial_answers.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace kvlab {

namespace {

// Number, count of answers, answers, replay results (found: 1, 0, or -1 for none), "end".
std::string line_of(const SampleGrades& sample) {
  std::string line = fmt::format("{} {}", sample.answers.front().sample, sample.answers.size());
  for (const GradedAnswer& a : sample.answers)
    line += fmt::format(" {} {} {} {} {} {} {} {:.17g} {:.17g} {:.17g}", a.turn, a.tokens, a.bytes, a.first_wrong, a.first_diverging,
                        a.agreeing, a.is_full_exact ? 1 : 0, a.bits, a.kl_nats, a.resident_bytes_frac);
  if (const auto& f = sample.replayed) {
    line += fmt::format(" replayed {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g}", f->attention_mass, f->output_rel_err,
                        f->topk_recall, f->kl, f->far_mass, f->far_mass_kept, f->needle_mass, f->needle_mass_kept);
    for (const std::optional<bool>& found : sample.found) line += fmt::format(" {}", found ? static_cast<int>(*found) : -1);
  }
  return line + " end\n";
}

// Empty answers: truncated or invalid.
SampleGrades read_line(const std::string& line) {
  std::istringstream in(line);
  std::int32_t number = 0, count = 0;
  if (!(in >> number >> count)) return {};
  SampleGrades sample;
  for (std::int32_t i = 0; i < count; ++i) {
    GradedAnswer a;
    a.sample = number;
    if (!(in >> a.turn >> a.tokens >> a.bytes >> a.first_wrong >> a.first_diverging >> a.agreeing >> a.is_full_exact >> a.bits >>
          a.kl_nats >> a.resident_bytes_frac))
      return {};
    sample.answers.push_back(a);
  }
  std::string word;
  if (!(in >> word)) return {};
  if (word == "replayed") {
    Fidelity f;
    if (!(in >> f.attention_mass >> f.output_rel_err >> f.topk_recall >> f.kl >> f.far_mass >> f.far_mass_kept >> f.needle_mass >>
          f.needle_mass_kept))
      return {};
    for (std::int32_t i = 0, found = 0; i < count; ++i) {
      if (!(in >> found)) return {};
      sample.found.push_back(found < 0 ? std::nullopt : std::optional<bool>(found == 1));
    }
    sample.replayed = f;
    if (!(in >> word)) return {};
  }
  return word == "end" ? sample : SampleGrades{};
}

}  // namespace

PartialAnswers::PartialAnswers(std::filesystem::path file) : file_(std::move(file)) {
  std::ifstream stream(file_);
  for (std::string line; std::getline(stream, line);) {
    is_cut_off_ = stream.eof();
    SampleGrades sample = read_line(line);
    if (!sample.answers.empty()) by_sample_[sample.answers.front().sample] = std::move(sample);
  }
}

void PartialAnswers::add(const SampleGrades& sample) {
  by_sample_[sample.answers.front().sample] = sample;
  std::filesystem::create_directories(file_.parent_path());
  errno = 0;
  std::ofstream stream(file_, std::ios::app);
  if (std::exchange(is_cut_off_, false)) stream << '\n';
  stream << line_of(sample) << std::flush;
  if (!stream) throw std::runtime_error(file_.string() + ": cannot be written: " + std::strerror(errno));
}

void PartialAnswers::remove_file() const {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
  std::filesystem::remove(file_.parent_path(), ignored);  // succeeds if empty
}

}  // namespace kvlab
