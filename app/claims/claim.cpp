#include "app/claims/claim.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr double kMostFactor = 2, kMostShare = 0.1;
constexpr double kRounding = 1e-9;  // relative: 0.1 and 1.1 are not binary fractions

int side_of(double value, double no_effect) { return value > no_effect ? 1 : value < no_effect ? -1 : 0; }

bool is_on_side(const Published& p, double ours) { return !p.no_effect || side_of(ours, *p.no_effect) == side_of(p.value, *p.no_effect); }

bool is_within(double ours, double low, double high) {
  return ours >= low - kRounding * std::abs(low) && ours <= high + kRounding * std::abs(high);
}

bool meets(const Published& p, Criterion counts, double ours) {
  if (counts == Criterion::kFactor) return is_within(ours, p.value / kMostFactor, p.to * kMostFactor);
  if (counts == Criterion::kNumber) return is_within(ours, p.value - kMostShare * std::abs(p.value), p.to + kMostShare * std::abs(p.to));
  return false;
}

// At most four digits, without trailing zeros.
std::string number(double value) { return std::abs(value) < 1e4 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value); }

constexpr double kMost = 1e12;

// Other lines are blank, to keep positions.
std::string text_of_value(const std::string& text, const YAML::Node& root, const std::string& key) {
  int begin = 0, end = std::numeric_limits<int>::max();
  std::size_t column = std::string::npos;  // of the value, if on the key's line
  for (const auto& item : root) {
    if (item.first.Scalar() != key) continue;
    begin = item.first.Mark().line;
    if (item.second.Mark().line == begin) column = static_cast<std::size_t>(item.second.Mark().column);
  }
  for (const auto& item : root)
    if (item.first.Mark().line > begin) end = std::min(end, item.first.Mark().line);
  std::istringstream lines(text);
  std::string kept;
  int at = 0;
  for (std::string line; std::getline(lines, line); ++at) {
    if (at == begin) std::fill_n(line.begin(), std::min(line.size(), column), ' ');
    kept += (at >= begin && at < end ? line : "") + "\n";
  }
  return kept;
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& file)
      : text_(text), config_(parse_config(text, file)), p_(config_, std::make_shared<const Choices>(), "the claim") {
    claim_.file = file;
    claim_.name = fs::path(file).stem().string();
  }

  Claim read() {
    claim_.system = required_text("system", "the policy or system that the claim is about");
    claim_.paper = required_text("paper", "name, index, citation");
    claim_.baseline = required_text("baseline", "compared with it");
    claim_.setting = required_text("setting", "model, GPU and workload of the paper");
    claim_.note = p_.text("note", "", "the parts of the setting that could not be matched");
    claim_.recalled = p_.words("recalled", "facts of the paper that were recalled, not read");
    claim_.assumed = p_.words("assumed", "parts of the experiment that are ours");
    read_published();
    claim_.counts = p_.choice("counts", kCriteria, Criterion::kDirection, "direction; factor: within 2 times; number: within 10 %");
    if (!p_.has("counts")) required_text("counts", "");
    check_criterion();
    read_experiment();
    read_runs();
    read_measure();
    p_.reject_unread();
    return std::move(claim_);
  }

 private:
  std::string required_text(const char* key, const char* meaning) {
    const std::string text = p_.text(key, meaning);
    if (text.empty()) p_.fail_at(key, fmt::format("'{}' is empty", key));
    return text;
  }

  void read_published() {
    Params p = p_.child("published", "'published'");
    Published& published = claim_.published;
    published.value = p.required<double>("value", -kMost, kMost, "the published figure; of a range its low end");
    published.to = p.optional<double>("to", published.value, -kMost, kMost, "high end of a range");
    if (published.to < published.value) p.fail_at("to", "'to' is below 'value'");
    published.unit = p.text("unit", "unit of the figure; x: a ratio");
    published.text = p.text("of", "what it is the figure of");
    published.where = p.text("where", "where it is published: abstract, section, table");
    if (p.has("no_effect"))
      published.no_effect = p.required<double>("no_effect", -kMost, kMost, "the figure if the system changed nothing");
    else if (published.unit == "x")
      published.no_effect = 1;
    p.reject_unread();
    if (published.no_effect && published.value <= *published.no_effect && published.to >= *published.no_effect)
      p.fail_at("value", fmt::format("the published figure holds {}, the figure of no effect: it claims nothing", *published.no_effect));
  }

  void check_criterion() const {
    if (claim_.counts == Criterion::kDirection && !claim_.published.no_effect)
      p_.fail_at("counts", "'direction' needs 'no_effect' in 'published', or 'unit: x'");
    if (claim_.counts == Criterion::kFactor && claim_.published.value <= 0)
      p_.fail_at("counts", "'factor' needs a published figure above 0");
    if (claim_.counts == Criterion::kFactor && claim_.published.no_effect && lets_no_effect_pass())
      p_.fail_at("counts", "'factor' would let a figure of no effect pass, as the published one is within 2 times of it: write 'number'");
  }

  // Within a factor of 2, 0.9x passes for 1.8x.
  [[nodiscard]] bool lets_no_effect_pass() const {
    const double none = *claim_.published.no_effect;
    return none > 0 && claim_.published.value <= 2 * none && claim_.published.to >= none / 2;
  }

  void read_experiment() {
    if (!p_.has("experiment")) p_.child("experiment", "");
    const YAML::Node node = std::as_const(config_->root)["experiment"];
    seen("experiment");
    if (node.IsScalar())
      claim_.experiment_file = node.Scalar();
    else if (node.IsMap())
      claim_.experiment_text = text_of_value(text_, config_->root, "experiment");
    else
      p_.fail_at("experiment", "'experiment': expected the keys of an experiment, or the name of one");
  }

  void read_runs() {
    Params runs = p_.child("runs", "'runs'");
    for (const std::string& name : runs.keys()) {
      ClaimRun run{name, place_of(*config_, std::as_const(config_->root)["runs"][name], ""), {}};
      if (name.empty() || !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }))
        runs.fail_at(name, "'" + name + "': a run's name has letters, digits and '_' only");
      const Params set = runs.optional_child(name, "run '" + name + "'");
      for (const std::string& key : set.keys()) run.overrides.push_back(key + "=" + set.inline_text(key, ""));
      claim_.runs.push_back(std::move(run));
    }
    if (claim_.runs.empty()) p_.fail_at("runs", "'runs' is empty; write 'runs: {ours: {KEY: VALUE}, baseline: {KEY: VALUE}}'");
  }

  void read_measure() {
    const std::string text = required_text("measure", "the quantity, over runs and columns of summary.csv");
    std::vector<std::string> names;
    for (const ClaimRun& run : claim_.runs) names.push_back(run.name);
    claim_.measure = Measure::parse(text, place_of(*config_, std::as_const(config_->root)["measure"], ""), names);
  }

  // A key that is read elsewhere.
  void seen(const std::string& key) { p_.child_or_text(key, "file", ""); }

  const std::string& text_;
  std::shared_ptr<const ConfigFile> config_;
  Params p_;
  Claim claim_;
};

}  // namespace

Verdict judge(const Published& published, Criterion counts, double ours) {
  if (!is_on_side(published, ours)) return Verdict::kNotReproduced;
  if (meets(published, counts, ours)) return Verdict::kReproduced;
  return published.no_effect ? Verdict::kDirection : Verdict::kNotReproduced;
}

std::string figure_text(double value, const std::string& unit) {
  const std::string rounded = number(std::stod(fmt::format("{:.3g}", value)));
  return unit == "x" || unit.empty() ? rounded + unit : rounded + " " + unit;
}

std::string figure_text(const Published& p) {
  const std::string low = number(p.value), text = p.to == p.value ? low : low + "-" + number(p.to);
  return p.unit == "x" || p.unit.empty() ? text + p.unit : text + " " + p.unit;
}

std::string ClaimRun::placed(const std::string& message) const {
  return message.starts_with("--set ") ? fmt::format("{}: run '{}': {}", place, name, message) : message;
}

Experiment Claim::experiment(const ClaimRun& run) const {
  try {
    Experiment made =
        experiment_text.empty() ? load_experiment(experiment_file, run.overrides) : parse_experiment(experiment_text, file, run.overrides);
    made.name = name;
    return made;
  } catch (const InputError& e) {
    throw InputError(run.placed(e.what()));
  }
}

Claim parse_claim(const std::string& text, const std::string& file) { return Reader(text, file).read(); }

std::vector<fs::path> claim_files() { return shipped_yaml_files("claims"); }

Claim load_claim(const std::string& name) {
  std::error_code error;
  if (name.ends_with(".yaml") && fs::exists(name, error)) return parse_claim(read_file(name, "a YAML file"), name);
  std::vector<std::string> known;
  for (const fs::path& file : claim_files()) {
    if (file.stem() == name) return parse_claim(read_file(file), file.string());
    known.push_back(file.stem().string());
  }
  throw InputError("unknown claim '" + name + "'" + suggestion(name, known));
}

}  // namespace kvlab
