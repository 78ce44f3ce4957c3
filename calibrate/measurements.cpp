#include "calibrate/measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/config/params.h"
#include "base/quantile.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;
const char* const kHeader = "table,a,b,role,time_ns,spread_frac,rows,tokens,outputs,bytes,flops,mean_frac\n";

std::string identity_text(const Measurements::Identity& identity) {
  std::string text;
  for (const auto& [key, value] : identity) text += key + ": \"" + value + "\"\n";
  return text;
}

void check_identity(const std::string& folder, const Measurements::Identity& identity) {
  Params p(load_config(folder + "/calibration.yaml"), std::make_shared<Choices>(), "calibration '" + folder + "'");
  for (const auto& [key, value] : identity) {
    const std::string there = p.text(key, "", "what was measured");
    if (there == value) continue;
    throw InputError(
        fmt::format("{}: holds measurements of {} '{}', not '{}'; choose another --out, or remove the folder", folder, key, there, value));
  }
}

// Over the medians that are not outliers.
struct Steady {
  double count = 0, seconds = 0, squares = 0;
  explicit Steady(const std::vector<double>& medians) {
    constexpr double kFarthest = 4;
    std::vector<double> sorted = medians;
    std::sort(sorted.begin(), sorted.end());
    const double usual = sorted[(sorted.size() - 1) / 2];
    for (const double m : sorted)
      if (m <= kFarthest * usual && usual <= kFarthest * m) ++count, seconds += m, squares += m * m;
  }
  [[nodiscard]] double mean() const { return seconds / count; }
};

struct Noise {
  double sum = 0;
  int points = 0;
  void add(const std::vector<Measurements::Entry>& entries) {
    for (const Measurements::Entry& e : entries) {
      if (e.times() < 2) continue;
      sum += e.deviation_frac();
      ++points;
    }
  }
  [[nodiscard]] double mean() const { return points == 0 ? 0 : sum / points; }
};

}  // namespace

double Measurements::Entry::mean_seconds() const { return Steady(medians).mean(); }

double Measurements::Entry::deviation_frac() const {
  const Steady s(medians);
  if (s.count < 2) return 0;
  return std::sqrt(std::max(0.0, s.squares - s.seconds * s.mean()) / (s.count - 1)) / s.mean();
}

Measurements::Measurements(const std::string& folder, const Identity& identity) : folder_(folder) {
  std::error_code error;
  const std::string file = folder + "/measurements.csv";
  if (fs::exists(folder + "/calibration.yaml", error)) {
    check_identity(folder, identity);
    if (fs::exists(file, error)) read();
  } else if (fs::exists(folder, error) && !fs::is_empty(folder, error)) {
    throw InputError(folder + ": exists and holds no calibration; choose another --out");
  } else {
    fs::create_directories(folder, error);
    write_file(folder + "/calibration.yaml", identity_text(identity));
  }
  const bool is_new = !fs::exists(file, error);
  stream_.open(file, std::ios::binary | std::ios::app);
  if (is_new) stream_ << kHeader << std::flush;
  if (!stream_) throw InputError(file + ": cannot be written: " + std::strerror(errno));
}

// Drops a partial last line, also from the file.
void Measurements::read() {
  const std::string file = folder_ + "/measurements.csv";
  const std::string text = read_if_there(file);
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole != text.size()) fs::resize_file(file, whole);
  if (std::count(text.begin(), text.end(), '\n') < 2) {  // only a header
    if (whole == 0) fs::remove(file);
    return;
  }
  const MeasuredTable csv(file);
  for (std::size_t row = 0; row < csv.num_rows(); ++row) {
    const auto count = [&](const char* column) { return csv.count(row, csv.column(column)); };
    const Picoseconds time = csv.time(row, csv.column("time_ns"), TimeUnit::kNs);
    const Measured m{
        to_s(time),     csv.real(row, csv.column("spread_frac")), count("rows"), count("tokens"), count("outputs"), count("bytes"),
        count("flops"), csv.real(row, csv.column("mean_frac"))};
    const std::string& role = csv.text(row, csv.column("role"));
    if (role != "fit" && role != "heldout") throw InputError(csv.place(row) + ": 'role' = '" + role + "' is neither fit nor heldout");
    take(csv.text(row, csv.column("table")), {{count("a"), count("b")}, role == "fit" ? Role::kFit : Role::kHeldOut, m, {m.seconds}});
  }
}

void Measurements::take(const std::string& table, const Entry& entry) {
  ++size_;
  mean_fracs_[table].push_back(entry.measured.mean_frac);
  std::vector<Entry>& entries = tables_[table];
  const auto known = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.at == entry.at; });
  if (known == entries.end()) return entries.push_back(entry);
  known->medians.push_back(entry.measured.seconds);
  known->measured.seconds = known->mean_seconds();
  known->measured.spread_frac = std::max(known->measured.spread_frac, entry.measured.spread_frac);
}

void Measurements::add(const std::string& table, const CalibrationPoint& at, Role role, const Measured& m) {
  const Picoseconds time = std::max(Picoseconds{1}, ps_of_s(m.seconds));
  stream_ << fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", table, at[0], at[1], role == Role::kFit ? "fit" : "heldout",
                         ns_text(time), number_text(m.spread_frac), m.rows, m.tokens, m.outputs, m.bytes, m.flops, number_text(m.mean_frac))
          << std::flush;
  if (!stream_) throw InputError(folder_ + "/measurements.csv: cannot be written: " + std::strerror(errno));
  Measured rounded = m;
  rounded.seconds = to_s(time);
  take(table, {at, role, rounded, {rounded.seconds}});
}

double Measurements::own_mean_frac(const std::string& table) const {
  const auto known = mean_fracs_.find(table);
  if (known == mean_fracs_.end()) return 1;
  return upper_median(known->second);
}

double Measurements::stall_frac() const {
  double sum = 0;
  for (const auto& [table, fracs] : mean_fracs_) sum += std::accumulate(fracs.begin(), fracs.end(), 0.0) / own_mean_frac(table);
  return size_ == 0 ? 1 : sum / static_cast<double>(size_);
}

double Measurements::noise_frac(const std::string& table) const {
  Noise all, own;
  for (const auto& [name, entries] : tables_) all.add(entries);
  own.add(of(table));
  return std::max(all.mean(), own.mean());
}

const std::vector<Measurements::Entry>& Measurements::of(const std::string& table) const {
  static const std::vector<Entry> none;
  const auto at = tables_.find(table);
  return at == tables_.end() ? none : at->second;
}

std::vector<std::string> Measurements::tables() const {
  std::vector<std::string> names;
  for (const auto& [name, entries] : tables_) names.push_back(name);
  return names;
}

bool Measurements::has(const std::string& table, const CalibrationPoint& at) const {
  const auto& entries = of(table);
  return std::any_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.at == at; });
}

}  // namespace kvlab
