#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/why/why.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::string percent(double share) {
  const double p = 100 * share;
  return p > 99.95 || p == std::floor(p) ? fmt::format("{:.0f} %", p) : p >= 10 ? fmt::format("{:.1f} %", p) : fmt::format("{:.2g} %", p);
}

// "98 % queued, 2 % prefill": from half a percent, largest first.
std::string parts_text(const TimeParts& parts) {
  double all = 0;
  std::vector<std::pair<double, const char*>> shares;
  for (const double part : parts) all += part;
  if (!(all > 0)) return "";
  constexpr double kLeast = 0.005;
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (parts[p] / all >= kLeast) shares.emplace_back(parts[p] / all, kTimePartNames[p]);
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  for (const auto& [share, name] : shares) texts.push_back(fmt::format("{:.0f} % {}", 100 * share, name));
  return join(texts, ", ");
}

bool is_judged(const Explanation& e) { return std::isfinite(e.attainment); }

// "limit 2 s, 57.1 % attain, 90 % wanted"; "" without a limit.
std::string slo_text(const Explanation& e) {
  std::vector<std::string> texts;
  if (e.limit_ms) texts.push_back("limit " + time_text(*e.limit_ms));
  if (is_judged(e) && e.metric.column != "slo_attainment_frac")
    texts.push_back(fmt::format("{} of requests attain the SLO, {} wanted", percent(e.attainment), percent(e.wanted)));
  return texts.empty() ? "" : " (" + join(texts, "; ") + ")";
}

std::string limits_text(const Explanation& e) {
  if (e.limits.empty()) return "";
  const LimitUse& nearest = e.limits.front();
  return fmt::format("nearest to a limit: {}, which {} of requests keep within {} of {} ({})", nearest.limit, percent(e.wanted),
                     time_text(nearest.value_ms), time_text(nearest.limit_ms), percent(nearest.value_ms / nearest.limit_ms));
}

// "the slowest 1 %".
std::string tail_text(const Explanation& e) {
  const double tail = e.metric.is_latency() ? e.metric.tail_frac : 0.01;
  return tail >= 1 ? "all requests" : e.num_slowest == 1 ? "the slowest request" : fmt::format("the slowest {:.0f} %", 100 * tail);
}

std::string first_line(const Explanation& e) {
  std::string text = std::isfinite(e.value) ? fmt::format("{} {}", e.metric.title(), e.metric.text_of(e.value))
                                            : fmt::format("{}: none", e.metric.title());
  text += slo_text(e) + ".";
  if (e.is_search && !e.binding.empty() && !e.is_end_of_range)
    text += fmt::format(" Beyond it {} binds{}.", e.binding, e.waits_for.empty() ? "" : ", and requests wait for " + e.waits_for);
  if (!e.is_search && is_judged(e) && e.attains())
    if (std::string near = limits_text(e); !near.empty()) near[0] = 'N', text += " Nothing binds; n" + near.substr(1) + ".";
  const std::string parts = parts_text(e.parts);
  if (!parts.empty())
    text += fmt::format(" Time of {}: {}{}{}.", tail_text(e), parts, e.knows_preemptions ? "" : " (times of preemptions are part of these)",
                        e.num_slowest < e.num_requests ? fmt::format("; of all {}: {}", e.num_requests, parts_text(e.all_parts)) : "");
  return text;
}

std::string remarks_text(const Explanation& e) {
  std::string text;
  for (std::string remark : e.remarks) {
    remark[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(remark[0])));
    text += " " + remark + ".";
  }
  return text;
}

std::string second_line(const Explanation& e) {
  if (e.num_slowest == 0) return "No request has such a latency." + remarks_text(e);
  const auto s = [](double ns) { return fmt::format("{:.4g}", ns * 1e-9); };
  std::string text = e.num_slowest == 1
                         ? fmt::format("It arrived at {} s", s(e.arrived.begin_ns))
                         : fmt::format("The {} arrived at {} to {} s", e.num_slowest, s(e.arrived.begin_ns), s(e.arrived.end_ns));
  std::vector<std::string> rest = e.full;
  if (e.full.empty()) rest.push_back("neither KV memory nor a limit of the scheduler was full");
  rest.insert(rest.end(), e.load.begin(), e.load.end());
  return text + "; " + join(rest, ", ") + "." + remarks_text(e);
}

std::string tried_text(const Explanation& e, const Tried& t) {
  std::string text = t.label;
  if (std::isfinite(t.value)) text += " " + e.metric.text_of(t.value);
  std::vector<std::string> more;
  if (e.is_search && !t.attains) more.push_back("none attains");
  if (!e.is_search && std::isfinite(t.attainment)) more.push_back(t.attains ? "attains" : fmt::format("{} attain", percent(t.attainment)));
  if (t.is_highest_load) more.push_back("the highest load that does");
  return text + (more.empty() ? "" : " (" + join(more, ", ") + ")");
}

// Less than 1 %, and attains no more than before.
bool has_no_effect(const Explanation& e, const Tried& t) {
  constexpr double kLittle = 0.01;
  const bool is_near = std::isfinite(t.value) ? std::abs(t.value - e.value) <= kLittle * std::abs(e.value) : !std::isfinite(e.value);
  return is_near && !t.is_highest_load && (e.is_search || !t.attains || e.attains());
}

std::string third_line(const Explanation& e) {
  std::vector<std::string> tried, no_effect, cannot;
  for (const Tried& t : e.tried) {
    if (!t.error.empty())
      cannot.push_back(t.label);
    else if (has_no_effect(e, t))
      no_effect.push_back(t.label);
    else
      tried.push_back(tried_text(e, t));
  }
  std::vector<std::string> texts;
  if (!tried.empty()) texts.push_back("Tried: " + join(tried, "; ") + ".");
  if (!no_effect.empty()) texts.push_back("No effect: " + join(no_effect, ", ") + ".");
  if (!cannot.empty()) texts.push_back(fmt::format("Cannot run: {} (--json has the reasons).", join(cannot, ", ")));
  if (!e.skipped.empty()) texts.push_back(fmt::format("No time was left for: {} (--seconds).", join(e.skipped, ", ")));
  return join(texts, " ");
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

nlohmann::ordered_json parts_json(const TimeParts& parts) {
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  for (std::size_t p = 0; p < parts.size(); ++p) found[kTimePartNames[p]] = parts[p] * 1e-6;
  return found;
}

nlohmann::ordered_json tried_json(const WhyMetric& metric, const Tried& t) {
  nlohmann::ordered_json one = {{"change", t.label},
                                {"set", t.set},
                                {"value", number_or_null(t.value)},
                                {"text", std::isfinite(t.value) ? metric.text_of(t.value) : ""},
                                {"attainment", number_or_null(t.attainment)},
                                {"attains", t.attains},
                                {"gpus", t.gpus}};
  if (!t.error.empty()) one["error"] = t.error;
  return one;
}

}  // namespace

std::vector<std::string> lines_of(const Explanation& e) {
  std::vector<std::string> lines{first_line(e), second_line(e)};
  if (std::string third = third_line(e); !third.empty()) lines.push_back(std::move(third));
  return lines;
}

nlohmann::ordered_json json_of(const Explanation& e) {
  using Json = nlohmann::ordered_json;
  Json tried = Json::array(), limits = Json::array();
  for (const LimitUse& use : e.limits) limits.push_back({{"limit", use.limit}, {"value_ms", use.value_ms}, {"limit_ms", use.limit_ms}});
  for (const Tried& t : e.tried) tried.push_back(tried_json(e.metric, t));
  return {{"run", e.run},
          {"title", e.title},
          {"metric", e.metric.column},
          {"name", e.metric.title()},
          {"value", number_or_null(e.value)},
          {"text", std::isfinite(e.value) ? e.metric.text_of(e.value) : ""},
          {"limit_ms", e.limit_ms ? Json(*e.limit_ms) : Json()},
          {"attainment", number_or_null(e.attainment)},
          {"wanted", e.wanted},
          {"binding_limit", e.binding},
          {"waits_for", e.waits_for},
          {"slowest", e.num_slowest},
          {"requests", e.num_requests},
          {"parts_ms", parts_json(e.parts)},
          {"all_parts_ms", parts_json(e.all_parts)},
          {"knows_preemptions", e.knows_preemptions},
          {"arrived_s", {e.arrived.begin_ns * 1e-9, e.arrived.end_ns * 1e-9}},
          {"full", e.full},
          {"load", e.load},
          {"limits", limits},
          {"remarks", e.remarks},
          {"tried", tried},
          {"skipped", e.skipped},
          {"lines", lines_of(e)}};
}

}  // namespace kvlab
