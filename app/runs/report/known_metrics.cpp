#include "app/runs/report/known_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr std::string_view kServing =
    "requests completed rejected duration_s requests_per_s prompt_tokens_per_s output_tokens_per_s slo_attainment_frac "
    "goodput_per_s preemptions swaps recompute_fallbacks recomputed_tokens prefix_hit_frac batch_mean_requests "
    "batch_mean_tokens kv_used_mean_frac kv_used_peak_frac kv_blocks max_step_tokens max_step_seqs steps busy_frac "
    "step_linear_frac step_attention_frac step_head_frac step_collective_frac step_policy_frac mfu_frac mbu_frac inside_frac "
    "interpolated_frac extrapolated_frac overload_frac internal_fragmentation_frac external_fragmentation_frac energy_j "
    "energy_j_per_token dollars_per_million_tokens qoe_mean qoe_p50 qoe_p10 qoe_p1 qoe_min slo_ttft_miss_frac "
    "slo_tpot_miss_frac slo_tbt_miss_frac slo_e2e_miss_frac slo_rejected_frac gpus requests_per_s_per_gpu "
    "output_tokens_per_s_per_gpu goodput_per_s_per_gpu capacity_per_s search_rate_per_s search_concurrency search_replicas "
    "search_tp search_rate_per_s_per_gpu ";

// Replays, graded answers and hit ratios.
constexpr std::string_view kOfPolicies =
    "budget_tokens attention_mass output_rel_err topk_recall resident_bytes_frac kl_nats needle_kept kept_tokens "
    "attended_tokens host_bytes_frac disk_bytes_frac peak_prefill_frac fetched_bytes_per_step stored_bytes_per_step "
    "unit_hit_frac samples decode_steps far_mass_kept needle_mass_kept needle_found_frac length num_answers exact_match_frac "
    "kl_to_full bits_per_byte exact_match_lo exact_match_hi full_exact_match_frac lost_answers won_answers paired_half_width "
    "paired_lo paired_hi token_agreement_frac agreeing_prefix_frac replay_kl_nats capacity_blocks lookups hits hit_frac "
    "token_hit_frac evictions capacity_gib ";

void add_statistics_of_metric(const std::string& name, const std::string& unit, std::vector<std::string>& all) {
  for (const char* const statistic : {"mean", "p50", "p90", "p95", "p99", "max"}) all.push_back(name + "_" + statistic + unit);
}

std::vector<std::string> serving_metrics() {
  std::vector<std::string> all = words_in(kServing);
  for (const char* const name : {"ttft", "tpot", "itl", "e2e", "queueing", "jct"}) add_statistics_of_metric(name, "_ms", all);
  add_statistics_of_metric("normalized_latency", "_ms_per_token", all);
  return all;
}

const std::map<std::string, std::string>& headings() {
  static const std::map<std::string, std::string> all = {
      {"search_rate_per_s", "max_rate/s"},          {"search_concurrency", "max_users"},
      {"search_replicas", "min_replicas"},          {"search_tp", "min_tp"},
      {"slo_attainment_frac", "attained"},          {"binding_limit", "binding"},
      {"output_tokens_per_s", "tokens/s"},          {"dollars_per_million_tokens", "$/1M tokens"},
      {"requests_per_s_per_gpu", "requests/s/GPU"}, {"goodput_per_s_per_gpu", "goodput/s/GPU"},
      {"prefix_hit_frac", "prefix_hits"},           {"kv_used_mean_frac", "kv_used"}};
  return all;
}

}  // namespace

std::vector<std::string> words_in(std::string_view text) {
  std::istringstream words{std::string(text)};
  return {std::istream_iterator<std::string>(words), {}};
}

std::string last_key(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string short_path(const std::string& path, const std::vector<std::string>& paths) {
  const std::string last = last_key(path);
  const auto same = std::count_if(paths.begin(), paths.end(), [&](const std::string& other) { return last_key(other) == last; });
  return same == 1 ? last : path;
}

double real_or(const std::string& text, double absent) {
  double value = 0;
  return parse_real(text, value) ? value : absent;
}

std::vector<std::size_t> all_rows(const CsvTable& table) {
  std::vector<std::size_t> rows(table.rows.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}

std::vector<std::string> values_of(const CsvTable& table, const std::vector<std::size_t>& rows, std::size_t column) {
  std::vector<std::string> values;
  for (const std::size_t r : rows) {
    const std::string& value = table.rows[r][column];
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

std::pair<std::string, std::string> axis_and_value(const std::string& condition) {
  const std::size_t equals = condition.find('=');
  if (equals == std::string::npos) throw InputError(fmt::format("--where: '{}' is not AXIS=VALUE", condition));
  return {condition.substr(0, equals), condition.substr(equals + 1)};
}

const std::vector<std::string>& known_metrics() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> both = serving_metrics();
    for (std::string& name : words_in(kOfPolicies)) both.push_back(std::move(name));
    std::sort(both.begin(), both.end());
    return both;
  }();
  return all;
}

std::string heading_of(const std::string& column) {
  const auto found = headings().find(column);
  return found == headings().end() ? column : found->second;
}

std::string column_of_heading(const std::string& heading) {
  for (const auto& [column, text] : headings())
    if (text == heading) return column;
  return heading;
}

std::vector<std::string> metrics_and_headings(const std::vector<std::string>& columns) {
  std::set<std::string> all(columns.begin(), columns.end());
  for (const std::string& column : columns) all.insert(heading_of(column));
  return {all.begin(), all.end()};
}

}  // namespace kvlab
