#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <utility>

#include "app/runs/kinds/simulation.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/report/report.h"
#include "app/why/why.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

// "at 2.5 requests per second", "with 16 users".
std::string place_in_search(const SearchPlan& search, double value) {
  return search.key == SearchKey::kRate ? fmt::format("at {:.4g} requests per second", value) : "with " + search.text_of(value);
}

// A probe with nothing judged would count as failed.
void refuse_unjudged(const RunSummary& s, const ServingPlan& plan, double value) {
  const std::string place = place_in_search(*plan.search, value);
  if (s.requests > 0 && s.latencies.counted == 0)
    throw InputError(
        fmt::format("'warmup_ms': {} all of them arrive during the warm-up, so nothing is counted; shorten the "
                    "warm-up, lengthen the trace, or search lower rates",
                    place));
  for (const LatencyLimit& limit : plan.search->limits)
    if (s.requests > 0 && limit.is_undecided(s.latencies))
      throw InputError(fmt::format("'{}': {} no {} is counted", limit.column, place,
                                   limit.is_of_requests ? "completed request has that latency, so none" : "gap between two tokens"));
  if (s.requests == 0 || s.latencies.judged > 0 || !plan.search->has_slo) return;
  if (plan.setup.stop.after_time.count() == 0)
    throw InputError(
        fmt::format("'slo': {} no request that is counted has a target, so nothing is judged; give limits for "
                    "all requests, or for classes and clients that arrive after the warm-up",
                    place));
  throw InputError(
      fmt::format("'stop': {} it cuts every request off before one completes or misses a limit, so nothing is "
                  "judged; stop later, or search other rates",
                  place));
}

class LoneTrace final : public TraceSource {
 public:
  explicit LoneTrace(const TraceRequest& request) : request_(request) {}
  bool next(TraceRequest& request) override {
    request = request_;
    return !std::exchange(is_given_, true);
  }

 private:
  TraceRequest request_;
  bool is_given_ = false;
};

// Without content, among the first `limit` (0: all).
std::pair<TraceRequest, RequestFacts> shortest_prompt(TraceSource& trace, std::uint64_t limit) {
  TraceRequest request, shortest;
  RequestFacts facts;
  for (std::uint64_t i = 0; (limit == 0 || i < limit) && trace.next(request); ++i) {
    if (i > 0 && request.prompt_tokens >= shortest.prompt_tokens) continue;
    shortest = {};
    shortest.prompt_tokens = request.prompt_tokens;
    shortest.output_tokens = request.output_tokens;
    facts = request.facts == nullptr ? RequestFacts{} : *request.facts;
  }
  return {shortest, facts};
}

// Its unloaded TTFT if it misses the limit; else "".
std::string note_on_shortest_prompt(const ServingPlan& plan, const OpenTrace& open, RunSink& sink, const RunOptions& options) {
  const Span limit = plan.setup.slo.ttft;
  if (!plan.setup.slo.is_set || limit == Span::max()) return "";
  auto [request, facts] = shortest_prompt(*open(), plan.setup.stop.after_requests);
  if (request.prompt_tokens == 0) return "";
  request.session = 0;
  request.facts = &facts;
  SimSetup setup = plan.setup;
  setup.timeline_interval = setup.warmup = Span{0};
  setup.stop = {};
  const RunSummary s = simulate_with_oracle(
      setup, [&request = request] { return std::make_unique<LoneTrace>(request); }, sink, options);
  if (s.latencies.completed == 0 || s.latencies.ttft.max <= static_cast<double>(ns(limit))) return "";
  return fmt::format(
      "the shortest prompt, of {} tokens, needs {:.4g} ms to its first token without any load: no load attains ttft_ms = {:g}",
      request.prompt_tokens, static_cast<double>(s.latencies.ttft.max) * 1e-6, static_cast<double>(ns(limit)) * 1e-6);
}

OpenTrace at_rate(OpenTrace open, double native_per_s, double rate_per_s) {
  return [open = std::move(open), factor = native_per_s / rate_per_s] { return std::make_unique<RescaledTrace>(open(), factor); };
}

Fields search_fields(const SearchPlan& search, const SearchResult& found, std::int64_t gpus) {
  const auto of = [&](SearchKey key, const char* format, double scale = 1) {
    return search.key == key && found.best ? fmt::format(fmt::runtime(format), *found.best / scale) : std::string();
  };
  return {{"search_rate_per_s", of(SearchKey::kRate, "{:.6f}")},
          {"search_concurrency", of(SearchKey::kConcurrency, "{:.0f}")},
          {"search_replicas", of(SearchKey::kReplicas, "{:.0f}")},
          {"search_tp", of(SearchKey::kTp, "{:.0f}")},
          {"search_rate_per_s_per_gpu", of(SearchKey::kRate, "{:.6f}", static_cast<double>(gpus))}};
}

// "21.6 to 25.2": over rows, in percent.
std::string percent_range(const CsvTable& summary, const char* column) {
  double lo = 1, hi = 0;
  for (const auto& row : summary.rows) {
    double value = 0;
    if (!parse_real(row[summary.at(column)], value)) continue;
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  }
  const std::string from = fmt::format("{:.1f}", 100 * lo), to = fmt::format("{:.1f}", 100 * hi);
  return lo > hi ? "-" : from == to ? from : from + " to " + to;
}

// Each pair once, with its runs.
void print_limits(const CsvTable& summary, std::ostream& out) {
  if (!summary.has("max_step_tokens")) return;
  std::vector<std::pair<std::string, std::vector<std::string>>> limits;
  for (const auto& row : summary.rows) {
    const std::string &tokens = row[summary.at("max_step_tokens")], &seqs = row[summary.at("max_step_seqs")];
    const std::string text = fmt::format("{} tokens, {} sequences", tokens.empty() ? "any" : tokens, seqs.empty() ? "any" : seqs);
    auto at = std::find_if(limits.begin(), limits.end(), [&](const auto& l) { return l.first == text; });
    if (at == limits.end()) at = limits.insert(at, {text, {}});
    at->second.push_back(row[0]);
  }
  std::string line;
  for (const auto& [text, runs] : limits) {
    line += (line.empty() ? "" : "; ") + text;
    if (limits.size() > 1) line += runs.size() == 1 ? " (run " + runs[0] + ")" : fmt::format(" ({} runs from {})", runs.size(), runs[0]);
  }
  if (!line.empty()) out << "most per step: " << line << "\n";
}

// If compared schedulers have no common token limit. Unlimited ones do not count.
void print_unequal_budgets(const CsvTable& summary, std::ostream& out) {
  if (!summary.has("max_step_tokens") || !summary.has("scheduler")) return;
  std::map<std::string, std::set<std::string>> budgets;  // by scheduler
  for (const auto& row : summary.rows) {
    const std::string& limit = row[summary.at("max_step_tokens")];
    if (!limit.empty()) budgets[row[summary.at("scheduler")]].insert(limit);
  }
  if (budgets.size() < 2) return;
  std::set<std::string> common = budgets.begin()->second;
  std::vector<std::string> texts;
  for (const auto& [scheduler, limits] : budgets) {
    std::erase_if(common, [&, &own = limits](const std::string& limit) { return !own.contains(limit); });
    texts.push_back(scheduler + " " + join({limits.begin(), limits.end()}, ", "));
  }
  if (common.empty())
    out << fmt::format(
        "note: the schedulers differ in their most tokens per step as well ({}), so the differences are not of the policies alone: give "
        "them one limit (budget_tokens, of sglang chunk_tokens)\n",
        join(texts, "; "));
}

const std::string kMeasured = "step times measured by the engine; ";

// By source of step times and block count.
void print_credibility(const SweepReport& report, std::ostream& out) {
  struct Group {
    CsvTable rows;
    std::vector<nlohmann::ordered_json> step_times;
  };
  JoinedTexts sources;
  std::map<std::size_t, Group> groups;  // by source
  std::set<std::string> seen;
  for (const auto& row : report.summary.rows) {
    const nlohmann::ordered_json m = manifest_of_run(report.folder, row[0]);
    if (!m.contains("credibility") || !seen.insert(row[0]).second) continue;
    const std::string blocks = fmt::format("KV blocks {}; ", row[report.summary.at("kv_blocks_source")]);
    const std::string source =
        m.contains("served_model") ? kMeasured + blocks + m.value("served_model", "") : blocks + m.value("cost_source", "");
    Group& group = groups[sources.add(source)];
    group.rows.columns = report.summary.columns;
    group.rows.rows.push_back(row);
    if (m.contains("step_time_by_part")) group.step_times.push_back(m["step_time_by_part"]);
  }
  for (const auto& [place, group] : groups) {
    const CsvTable& rows = group.rows;
    std::vector<std::string> runs;
    for (const auto& row : rows.rows) runs.push_back(row[0]);
    const std::string source = sources.text(place), which = groups.size() == 1 ? "" : " of " + runs_text(runs, seen.size());
    if (source.starts_with(kMeasured)) {
      out << fmt::format("credibility{}: {}; overload {} % of time\n", which, source, percent_range(rows, "overload_frac"));
      continue;
    }
    out << fmt::format("credibility{}: step time {} % measured, {} % interpolated, {} % extrapolated; overload {} % of time; {}\n", which,
                       percent_range(rows, "inside_frac"), percent_range(rows, "interpolated_frac"),
                       percent_range(rows, "extrapolated_frac"), percent_range(rows, "overload_frac"), source);
    if (const std::string line = step_time_line(group.step_times); !line.empty()) out << line << "\n";
  }
}

}  // namespace

ServingPlan SimulationRun::plan_at(double value) const {
  const SearchPlan& search = *plan_.search;
  ServingPlan plan = plan_;
  if (search.key == SearchKey::kTp) {
    Params p = p_;
    p.prefer(kChosenTp, static_cast<long long>(value));
    plan = read_serving_plan(p, plan_.setup.seed);
    read_requests(p, plan);
    plan.setup.fast_forward = plan_.setup.fast_forward;
  }
  if (search.key == SearchKey::kReplicas) set_replicas(p_, plan, static_cast<std::uint32_t>(value));
  if (search.key == SearchKey::kRate) plan.trace.open = at_rate(plan.trace.open, native_per_s_, value);
  if (search.at_rate_per_s > 0) plan.trace.open = at_rate(plan.trace.open, native_per_s_, search.at_rate_per_s);
  if (search.key == SearchKey::kConcurrency)
    plan.trace.open = [open = plan.trace.open, users = static_cast<std::int32_t>(value), ramp = search.ramp] {
      return std::make_unique<UserTrace>(open(), users, ramp);
    };
  return plan;
}

Probe SimulationRun::probe(double value, const RunOptions& options) const {
  Probe probe;
  std::optional<ServingPlan> plan;
  try {
    plan = plan_at(value);
  } catch (const InputError& e) {
    if (plan_.search->key != SearchKey::kTp) throw;
    probe.refusal = e.what();
    return probe;
  }
  WaitWatch watch(plan->setup, nullptr);
  WatchedSink sink(&watch, options);
  const RunSummary s = simulate_with_oracle(plan->setup, plan->trace.open, sink, options);
  refuse_unjudged(s, *plan, value);
  probe.latencies = s.latencies;
  probe.counted_s = to_s(s.counted_duration);
  probe.waits_for = watch.waits_for();
  return probe;
}

RunSummary SimulationRun::search(RunFiles& files, const RunOptions& options, Findings& findings) {
  const SearchPlan search = *plan_.search;
  if (search.key == SearchKey::kRate || search.at_rate_per_s > 0)
    native_per_s_ = mean_rate(*plan_.trace.open(), plan_.setup.stop.after_requests);
  const SearchResult found = kvlab::search(search, [&](double value) { return probe(value, options); });
  files.add_file("search.csv", search_csv(files.id(), search, found));
  findings.add_note(found.note);
  const Probe* const next = found.next_failure(search);
  if (next != nullptr && !next->refusal.empty())
    findings.add_note(fmt::format("{} cannot run: {}", search.text_of(next->value), next->refusal));
  has_found_ = found.best.has_value();
  plan_ = plan_at(found.best.value_or(search.easiest()));
  if (!found.best && found.probes.back().refusal.empty()) {
    WatchedSink nothing(nullptr, options);
    findings.add_note(note_on_shortest_prompt(plan_, plan_.trace.open, nothing, options));
  }
  const RunSummary summary = run_plan(files, options, next, findings);
  const Fields fields = search_fields(search, found, num_gpus(plan_));
  findings.rows[0].insert(findings.rows[0].end(), fields.begin(), fields.end());
  return summary;
}

std::vector<std::string> Simulation::metrics() const {
  return {
      "search_rate_per_s",     "search_concurrency", "search_replicas",     "search_tp",   "goodput_per_s",  "slo_attainment_frac",
      "binding_limit",         "waits_for",          "ttft_p50_ms",         "ttft_p99_ms", "tpot_p50_ms",    "tpot_p99_ms",
      "attention_mass",        "output_rel_err",     "resident_bytes_frac", "qoe_mean",    "gpus",           "dollars_per_million_tokens",
      "output_tokens_per_s",   "prefix_hit_frac",    "kv_blocks",           "e2e_p50_ms",  "requests_per_s", "requests_per_s_per_gpu",
      "goodput_per_s_per_gpu", "preemptions",        "kv_used_mean_frac"};
}

void Simulation::report(const SweepReport& report, std::ostream& out) const {
  RunKind::report(report, out);
  print_limits(report.summary, out);
  print_unequal_budgets(report.summary, out);
  print_credibility(report, out);
  print_short_explanation(report.folder.path(), out);
}

}  // namespace kvlab
