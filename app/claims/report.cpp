#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "app/claims/run_claims.h"
#include "base/csv.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::string ours_of(const ClaimResult& r) { return r.ours ? figure_text(*r.ours, r.claim.published.unit) : ""; }
std::string verdict_of(const ClaimResult& r) { return r.ours ? name_of(kVerdicts, r.verdict()) : "error"; }

constexpr std::initializer_list<Named<Criterion>> kMeanings{{"the direction counts", Criterion::kDirection},
                                                            {"within 2 times counts", Criterion::kFactor},
                                                            {"within 10 % counts", Criterion::kNumber}};

std::string listed(const char* title, const std::vector<std::string>& items) {
  return items.empty() ? "" : fmt::format("  {:<12} {}\n", title, join(items, "; "));
}

std::string tally(const std::vector<ClaimResult>& results) {
  const auto count = [&](const char* verdict) {
    return std::count_if(results.begin(), results.end(), [&](const ClaimResult& r) { return verdict_of(r) == verdict; });
  };
  const auto errors = count("error");
  return fmt::format("{} claims: {} reproduced, {} in direction, {} not reproduced{}", results.size(), count("reproduced"),
                     count("direction"), count("not_reproduced"), errors > 0 ? fmt::format(", {} with an error", errors) : "");
}

// Escapes for Markdown tables.
std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string item(const char* title, const std::string& text) { return text.empty() ? "" : fmt::format("- {}: {}\n", title, text); }

std::string section(const ClaimResult& r) {
  const Claim& c = r.claim;
  std::string text = fmt::format("\n### {}\n\n{} against {}. {}\n\n", c.name, c.system, c.baseline, c.paper);
  text += item("published", fmt::format("{}: {} ({})", figure_text(c.published), c.published.text, c.published.where));
  text +=
      item("ours", r.ours ? fmt::format("{} = `{}`; {}: **{}**", ours_of(r), c.measure.text(), name_of(kMeanings, c.counts), verdict_of(r))
                          : r.error);
  text += item("setting of the paper", c.setting) + item("recalled", join(c.recalled, "; ")) + item("assumed", join(c.assumed, "; "));
  return text + item("not matched", c.note) + item("remarks of the runs", join(r.remarks, "; "));
}

}  // namespace

std::string claim_as_text(const ClaimResult& r) {
  const Claim& c = r.claim;
  std::string text = fmt::format("{}: {} against {}\n", c.name, c.system, c.baseline);
  text += fmt::format("  {:<12} {}, {} ({}; {})\n", "published", figure_text(c.published), c.published.text, c.paper, c.published.where);
  if (!r.ours) return text + fmt::format("  {:<12} {}\n", "error", r.error);
  text += fmt::format("  {:<12} {} = {}\n", "ours", ours_of(r), c.measure.text());
  text += fmt::format("  {:<12} {} ({})\n", "verdict", verdict_of(r), name_of(kMeanings, c.counts));
  text += listed("recalled", c.recalled) + listed("assumed", c.assumed);
  if (!c.note.empty()) text += fmt::format("  {:<12} {}\n", "not matched", c.note);
  return text + listed("remarks", r.remarks);
}

std::string claims_as_table(const std::vector<ClaimResult>& results) {
  std::vector<std::vector<std::string>> rows;
  for (const ClaimResult& r : results)
    rows.push_back({r.claim.name, r.claim.system, figure_text(r.claim.published), ours_of(r), verdict_of(r)});
  return text_table({"claim", "system", "published", "ours", "verdict"}, rows) + tally(results) + "\n";
}

std::string claims_as_json(const std::vector<ClaimResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ClaimResult& r : results) {
    if (!r.ours) continue;
    list.push_back({{"name", r.claim.name},
                    {"system", r.claim.system},
                    {"published", r.claim.published.value},
                    {"ours", *r.ours},
                    {"verdict", name_of(kVerdicts, r.verdict())}});
  }
  return list.dump(2) + "\n";
}

std::string claims_as_csv(const std::vector<ClaimResult>& results) {
  std::string text = csv_line({"name", "system", "published", "published_to", "no_effect", "unit", "ours", "counts", "verdict"});
  for (const ClaimResult& r : results) {
    const Published& p = r.claim.published;
    text += csv_line({r.claim.name, r.claim.system, number_text(p.value), number_text(p.to), p.no_effect ? number_text(*p.no_effect) : "",
                      p.unit, r.ours ? fmt::format("{:.6g}", *r.ours) : "", name_of(kCriteria, r.claim.counts), verdict_of(r)});
  }
  return text;
}

std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command) {
  std::string text = fmt::format(
      "# Published claims, and what the simulator gives\n\nMade by `{}`; [claims.md](../claims.md) says how a "
      "claim is written and judged.\n\n{}.\n\n![Published figures and ours](figures/claims.png)\n\n",
      command, tally(results));
  text += "| claim | system | against | published | ours | verdict |\n|---|---|---|---|---|---|\n";
  for (const ClaimResult& r : results) {
    const Claim& c = r.claim;
    text += fmt::format("| [{0}](#{0}) | {1} | {2} | {3} | {4} | {5} |\n", c.name, cell(c.system), cell(c.baseline),
                        cell(figure_text(c.published) + " " + c.published.text), cell(ours_of(r)), verdict_of(r));
  }
  for (const ClaimResult& r : results) text += section(r);
  return text;
}

}  // namespace kvlab
