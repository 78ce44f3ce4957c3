#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/sweep/experiment.h"
#include "base/config/param_reader.h"
#include "base/csv.h"

namespace kvlab {

// Arithmetic (+ - * / and parentheses) with numbers and
//   RUN.COLUMN of summary.csv: the mean over rows (seeds and axes)
//   max(RUN.COLUMN), min, mean, median: over rows
//   largest(ours.rate_per_s, ours.itl_p99_ms <= 100, ...): over rows that meet every limit (<= or >=)
// An axis is named by its path or the path's last part.
struct Measure {
  using Tables = std::map<std::string, CsvTable>;  // summary.csv of each run

  // place: for messages. runs: allowed names. Throws InputError.
  static Measure parse(const std::string& text, const std::string& place, const std::vector<std::string>& runs);
  // Throws InputError for an unknown column, a row without a value, a `largest` that no row or every row meets, or division by zero.
  std::function<double(const Tables&)> value;
  std::string text;
};

enum class Criterion : std::uint8_t {
  kDirection,  // same side of no effect
  kFactor,     // and within a factor of 2
  kNumber,     // and within 10 %
};

// kDirection: only the side is right, or only the side was claimed.
enum class Verdict : std::uint8_t { kReproduced, kDirection, kNotReproduced };

// Or a range from `value` to `to`.
struct Published {
  double value = 0, to = 0;
  std::optional<double> no_effect;  // 1 for a ratio; nullopt: no side
  std::string unit;                 // "x" for a ratio, else a suffix
  std::string text;
  std::string where;  // abstract, section or table
};

// Borders count as within; a figure equal to no_effect has no side.
Verdict judge(const Published& published, Criterion counts, double ours);

inline constexpr std::initializer_list<Named<Criterion>> kCriteria{
    {"direction", Criterion::kDirection}, {"factor", Criterion::kFactor}, {"number", Criterion::kNumber}};
inline constexpr std::initializer_list<Named<Verdict>> kVerdicts{
    {"reproduced", Verdict::kReproduced}, {"direction", Verdict::kDirection}, {"not_reproduced", Verdict::kNotReproduced}};

// "3.6x", "2-4x", "41 %".
std::string figure_text(const Published& published);
std::string figure_text(double value, const std::string& unit);

// The claim's experiment with other values.
struct ClaimRun {
  std::string name, place;  // "ours"; its place in the claim's file
  std::vector<std::string> overrides;

  [[nodiscard]] std::string placed(const std::string& message) const;
};

// Keys: docs/claims.md.
struct Claim {
  std::string name, file;  // as given
  std::string system, paper, baseline, setting, note;
  std::vector<std::string> recalled, assumed;
  Published published;
  Criterion counts = Criterion::kDirection;
  // A file, or text with the lines and columns of the claim's file.
  std::string experiment_file, experiment_text;
  std::vector<ClaimRun> runs;
  Measure measure;

  // Throws InputError.
  [[nodiscard]] Experiment experiment(const ClaimRun& run) const;
};

// In ./claims, or the shipped ones, by name.
std::vector<std::filesystem::path> claim_files();

// name: claim or file. Throws InputError, except for errors that only the runs show.
Claim load_claim(const std::string& name);
Claim parse_claim(const std::string& text, const std::string& file);

struct ClaimResult {
  Claim claim;
  std::optional<double> ours;  // nullopt: see error
  std::string error;
  int status = 0;                    // 2 for bad input, 130 after Ctrl-C, else 1
  std::vector<std::string> remarks;  // requests not served, sources of step times
  [[nodiscard]] Verdict verdict() const { return judge(claim.published, claim.counts, ours.value()); }
};

struct ClaimOptions {
  int jobs = 0;                           // 0: number of cores
  std::string folder = "results/claims";  // gets NAME/RUN/
  bool force = false;                     // repeat runs with unchanged inputs
};

// Progress goes to `err`.
std::vector<ClaimResult> run_claims(const std::vector<Claim>& claims, const ClaimOptions& options, std::ostream& err);

std::string claim_as_text(const ClaimResult& result);

std::string claims_as_table(const std::vector<ClaimResult>& results);

// {name, system, published, ours, verdict} per measured claim. A published range gives its low end.
std::string claims_as_json(const std::vector<ClaimResult>& results);

std::string claims_as_csv(const std::vector<ClaimResult>& results);

// claims.md. command: that made it.
std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command);

}  // namespace kvlab
