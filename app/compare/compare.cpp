#include "app/compare/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "app/runs/report/known_metrics.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kMainMetrics = {"requests_per_s",    "output_tokens_per_s", "ttft_mean_ms",      "ttft_p50_ms",
                                               "ttft_p99_ms",       "tpot_mean_ms",        "tpot_p99_ms",       "itl_p99_ms",
                                               "e2e_mean_ms",       "e2e_p50_ms",          "e2e_p99_ms",        "slo_attainment_frac",
                                               "goodput_per_s",     "preemptions",         "recomputed_tokens", "prefix_hit_frac",
                                               "kv_used_mean_frac", "busy_frac",           "search_rate_per_s", "hit_frac",
                                               "token_hit_frac",    "exact_match_frac",    "kl_to_full",        "bits_per_byte",
                                               "attention_mass",    "output_rel_err",      "topk_recall",       "resident_bytes_frac"};

// Rows of graded answers.
const std::vector<std::string> kRowNames = {"task", "length"};

// A pair of rows (A, B) per seed.
struct Group {
  std::string title;
  std::vector<std::pair<std::size_t, std::size_t>> pairs;  // rows in A and B

  [[nodiscard]] std::string heading() const {
    const std::string text =
        fmt::format("{}{} pair{} of runs", title.empty() ? "" : title + "- ", pairs.size(), pairs.size() == 1 ? "" : "s");
    return text + (num_alike > 0 ? fmt::format(", the first of {} that are alike: the seed changes nothing, n = 1\n", num_alike) : "\n");
  }
  std::size_t num_alike = 0;  // represented by the first
};

void join_equal_pairs(const CsvTable& a, const CsvTable& b, Group& group) {
  const auto are_equal = [](const CsvTable& t, std::size_t row, std::size_t first) {
    const auto from = static_cast<std::ptrdiff_t>(t.at("seed")) + 1;
    return std::equal(t.rows[row].begin() + from, t.rows[row].end(), t.rows[first].begin() + from);
  };
  const auto& [first_a, first_b] = group.pairs[0];
  const bool all = std::all_of(group.pairs.begin(), group.pairs.end(), [&, x = first_a, y = first_b](const auto& p) {
    return are_equal(a, p.first, x) && are_equal(b, p.second, y);
  });
  if (!all || group.pairs.size() == 1) return;
  group.num_alike = group.pairs.size();
  group.pairs.resize(1);
}

std::vector<std::string> axes_of(const CsvTable& summary) {
  std::vector<std::string> axes{summary.columns.begin() + 1, summary.columns.begin() + static_cast<std::ptrdiff_t>(summary.at("seed"))};
  for (const std::string& name : kRowNames)
    if (summary.has(name)) axes.push_back(name);
  return axes;
}

std::string key_of(const CsvTable& summary, std::size_t row, const std::vector<std::string>& axes) {
  std::string key;
  for (const std::string& axis : axes) key += fmt::format("{}={} ", axis, summary.rows[row][summary.at(axis)]);
  return key;
}

// Names the axis that differs.
[[noreturn]] void fail_several(const CsvTable& t, const CsvTable& other, std::size_t row, std::size_t earlier, const std::string& key) {
  for (const std::string& axis : axes_of(t)) {
    const std::size_t c = t.at(axis);
    if (other.has(axis) || t.rows[row][c] == t.rows[earlier][c]) continue;
    const std::vector<std::string> values = values_of(t, all_rows(t), c);
    throw InputError(fmt::format("{}: several runs match '{}', since {} has no axis '{}': choose one of its values, {}, with --where {}={}",
                                 t.file, key, other.file, axis, join(values, ", "), axis, values.front()));
  }
  throw InputError(fmt::format("{}: several runs match '{}': it has an axis that {} lacks", t.file, key, other.file));
}

// By name or last part; "" if unknown or ambiguous.
std::string axis_called(const CsvTable& table, const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& axis : axes_of(table)) {
    if (axis == name) return axis;
    if (last_key(axis) == name) found.push_back(axis);
  }
  return found.size() == 1 ? found.front() : "";
}

void choose_rows(std::initializer_list<CsvTable*> tables, const std::vector<std::string>& where) {
  for (const std::string& condition : where) {
    const auto [name, value] = axis_and_value(condition);
    std::vector<std::string> known;
    bool is_there = false;
    for (CsvTable* const table : tables) {
      for (const std::string& axis : axes_of(*table)) known.push_back(axis);
      const std::string axis = axis_called(*table, name);
      if (axis.empty()) continue;
      is_there = true;
      const std::size_t c = table->at(axis);
      std::erase_if(table->rows, [&, &wanted = value](const auto& row) { return row[c] != wanted; });
      if (table->rows.empty()) throw InputError(fmt::format("{}: no run has {} = '{}'", table->file, axis, value));
    }
    if (!is_there) throw InputError(fmt::format("--where: neither folder has an axis '{}'{}", name, suggestion(name, known)));
  }
}

std::vector<Group> match(const CsvTable& a, const CsvTable& b) {
  std::vector<std::string> axes;
  for (const std::string& axis : axes_of(a)) {
    const auto of_b = axes_of(b);
    if (std::find(of_b.begin(), of_b.end(), axis) != of_b.end()) axes.push_back(axis);
  }
  const auto with_seed = [&](const CsvTable& t, std::size_t row) { return key_of(t, row, axes) + "seed=" + t.rows[row][t.at("seed")]; };
  std::map<std::string, std::size_t> rows_of_b;
  for (std::size_t r = 0; r < b.rows.size(); ++r) {
    const auto [known, is_new] = rows_of_b.emplace(with_seed(b, r), r);
    if (!is_new) fail_several(b, a, r, known->second, with_seed(b, r));
  }
  std::vector<Group> groups;
  std::map<std::string, std::size_t> seen;
  for (std::size_t r = 0; r < a.rows.size(); ++r) {
    const auto [known, is_new] = seen.emplace(with_seed(a, r), r);
    if (!is_new) fail_several(a, b, r, known->second, with_seed(a, r));
    const auto found = rows_of_b.find(with_seed(a, r));
    if (found == rows_of_b.end()) continue;
    const std::string title = key_of(a, r, axes);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.title == title; });
    if (group == groups.end()) group = groups.insert(groups.end(), {title, {}});
    group->pairs.emplace_back(r, found->second);
  }
  if (groups.empty()) throw InputError(fmt::format("no run of {} has the axes and seed of a run of {}", a.file, b.file));
  return groups;
}

std::vector<std::string> metrics_of(const CsvTable& a, const CsvTable& b, bool every) {
  std::vector<std::string> metrics;
  for (std::size_t c = a.at("seed") + 1; c < a.columns.size(); ++c) {
    const std::string& column = a.columns[c];
    if (std::find(kRowNames.begin(), kRowNames.end(), column) != kRowNames.end()) continue;
    const bool wanted = every || std::find(kMainMetrics.begin(), kMainMetrics.end(), column) != kMainMetrics.end();
    if (wanted && b.has(column)) metrics.push_back(column);
  }
  return metrics;
}

std::vector<ComparedMetric> metrics_of_group(const CsvTable& a, const CsvTable& b, const Group& group,
                                             const std::vector<std::string>& metrics) {
  std::vector<ComparedMetric> found;
  for (const std::string& metric : metrics) {
    std::vector<double> values_a, values_b;
    for (const auto& [row_a, row_b] : group.pairs) {
      double x = 0, y = 0;
      if (!parse_real(a.rows[row_a][a.at(metric)], x) || !parse_real(b.rows[row_b][b.at(metric)], y)) continue;
      values_a.push_back(x);
      values_b.push_back(y);
    }
    if (!values_a.empty()) found.push_back({group.title, metric, paired_difference(values_a, values_b)});
  }
  return found;
}

std::string metric_table(const CsvTable& a, const CsvTable& b, const Group& group, const std::vector<std::string>& metrics) {
  std::vector<std::vector<std::string>> rows;
  for (const ComparedMetric& compared : metrics_of_group(a, b, group, metrics)) {
    const PairedDifference& d = compared.difference;
    const bool has_interval = std::isfinite(d.half_width) && d.half_width > 0;  // a constant difference has none
    const std::string relative = d.mean_a != 0 ? fmt::format("{:+.2f}%", 100 * d.mean / d.mean_a) : "";
    rows.push_back({compared.metric, short_number(d.mean_a), short_number(d.mean_b), short_number(d.mean), relative});
    if (group.pairs.size() == 1) continue;
    rows.back().push_back(has_interval ? short_number(d.mean - d.half_width) : "");
    rows.back().push_back(has_interval ? short_number(d.mean + d.half_width) : "");
    rows.back().emplace_back(has_interval && std::abs(d.mean) > d.half_width ? "*" : "");
  }
  std::vector<std::string> header = {"metric", "A", "B", "B - A", "relative"};
  if (group.pairs.size() > 1) header.insert(header.end(), {"ci95_lo", "ci95_hi", ""});
  return text_table(header, rows);
}

struct Moved {
  long long request = 0;
  double e2e_a = 0, e2e_b = 0, ttft_a = 0, ttft_b = 0;
};

// Request number -> (TTFT, E2E) in ms of completed requests.
std::map<long long, std::pair<double, double>> latencies_of(const CsvTable& requests, const std::string& run) {
  const std::size_t run_at = requests.at("run"), number_at = requests.at("request"), arrival_at = requests.at("arrival_ns"),
                    first_at = requests.at("first_token_ns"), last_at = requests.at("last_token_ns"), state_at = requests.at("state");
  std::map<long long, std::pair<double, double>> found;
  for (const auto& row : requests.rows) {
    if (row[run_at] != run || row[state_at] != "completed") continue;
    long long number = 0, arrival = 0, first = 0, last = 0;
    if (!parse_integer(row[number_at], number) || !parse_integer(row[arrival_at], arrival) || !parse_integer(row[first_at], first) ||
        !parse_integer(row[last_at], last)) {
      throw InputError(requests.file + ": a completed request has no times");
    }
    found[number] = {static_cast<double>(first - arrival) * 1e-6, static_cast<double>(last - arrival) * 1e-6};
  }
  return found;
}

std::string moved_table(const CsvTable& a, const CsvTable& b, const std::string& run_a, const std::string& run_b, std::size_t count) {
  const auto of_a = latencies_of(a, run_a), of_b = latencies_of(b, run_b);
  std::vector<Moved> moved;
  for (const auto& [number, of_one] : of_a) {
    const auto other = of_b.find(number);
    if (other != of_b.end()) moved.push_back({number, of_one.second, other->second.second, of_one.first, other->second.first});
  }
  std::stable_sort(moved.begin(), moved.end(),
                   [](const Moved& x, const Moved& y) { return std::abs(x.e2e_b - x.e2e_a) > std::abs(y.e2e_b - y.e2e_a); });
  moved.resize(std::min(moved.size(), count));
  std::vector<std::vector<std::string>> rows;
  for (const Moved& m : moved) {
    rows.push_back({std::to_string(m.request), short_number(m.e2e_a), short_number(m.e2e_b), short_number(m.e2e_b - m.e2e_a),
                    short_number(m.ttft_a), short_number(m.ttft_b)});
  }
  return rows.empty() ? "" : text_table({"request", "e2e_ms A", "e2e_ms B", "B - A", "ttft_ms A", "ttft_ms B"}, rows);
}

// Later turns of a session arrive depending on the answers.
struct Asked {
  std::vector<std::string> arrivals;                     // empty with sessions
  std::vector<std::pair<long long, long long>> lengths;  // (prompt, output) tokens, ascending; output 0: some unknown
};

Asked asked_of(const CsvTable& requests, const std::string& run) {
  Asked asked;
  for (const char* column : {"prompt_tokens", "output_tokens", "session"})
    if (!requests.has(column)) return asked;
  const std::size_t run_at = requests.at("run"), arrival_at = requests.at("arrival_ns"), prompt_at = requests.at("prompt_tokens"),
                    output_at = requests.at("output_tokens"), state_at = requests.at("state"), session_at = requests.at("session");
  bool has_sessions = false, all_completed = true;
  for (const auto& row : requests.rows) {
    if (row[run_at] != run) continue;
    long long prompt = 0, output = 0;
    parse_integer(row[prompt_at], prompt);
    parse_integer(row[output_at], output);
    asked.lengths.emplace_back(prompt, output);
    asked.arrivals.push_back(row[arrival_at]);
    has_sessions = has_sessions || !row[session_at].empty();
    all_completed = all_completed && row[state_at] == "completed";
  }
  if (has_sessions) asked.arrivals.clear();
  if (!all_completed)
    for (auto& [prompt, output] : asked.lengths) output = 0;
  std::sort(asked.lengths.begin(), asked.lengths.end());
  return asked;
}

bool differ_in_lengths(const Asked& a, const Asked& b) {
  return !std::equal(a.lengths.begin(), a.lengths.end(), b.lengths.begin(), b.lengths.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && (x.second == y.second || x.second == 0 || y.second == 0);
  });
}

// "" if equal. A search sets the rate itself.
std::string remark_on_traces(const Asked& a, const Asked& b, bool is_search) {
  if (differ_in_lengths(a, b))
    return fmt::format(
        "remark: the traces differ in requests or their lengths ({} and {} requests): these differences are not of the policies alone\n",
        a.lengths.size(), b.lengths.size());
  if (!is_search && a.arrivals != b.arrivals && !a.arrivals.empty() && !b.arrivals.empty())
    return "remark: the traces differ: the same requests arrive at other times\n";
  return "";
}

// "" if equal.
std::string remark_on_limits(const CsvTable& a, std::size_t row_a, const CsvTable& b, std::size_t row_b) {
  std::string text;
  for (const auto& [column, what] : {std::pair{"max_step_tokens", "tokens"}, {"max_step_seqs", "sequences"}}) {
    if (!a.has(column) || !b.has(column)) continue;
    const std::string &of_a = a.rows[row_a][a.at(column)], &of_b = b.rows[row_b][b.at(column)];
    if (of_a == of_b) continue;
    text +=
        fmt::format("remark: the most {} per step differ ({} and {})\n", what, of_a.empty() ? "any" : of_a, of_b.empty() ? "any" : of_b);
  }
  return text;
}

}  // namespace

PairedDifference paired_difference(const std::vector<double>& a, const std::vector<double>& b) {
  PairedDifference d;
  d.num_pairs = a.size();
  const auto n = static_cast<double>(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    d.mean_a += a[i] / n;
    d.mean_b += b[i] / n;
    d.mean += (b[i] - a[i]) / n;
  }
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (b[i] - a[i] - d.mean) * (b[i] - a[i] - d.mean);
  d.half_width = a.size() < 2 ? std::numeric_limits<double>::infinity() : student_t_975(a.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return d;
}

std::vector<ComparedMetric> compared_metrics(const std::string& folder_a, const std::string& folder_b, bool every,
                                             const std::vector<std::string>& where) {
  CsvTable a = read_csv(fs::path(folder_a) / "summary.csv"), b = read_csv(fs::path(folder_b) / "summary.csv");
  choose_rows({&a, &b}, where);
  const std::vector<std::string> metrics = metrics_of(a, b, every);
  std::vector<ComparedMetric> all;
  for (Group& group : match(a, b)) {
    join_equal_pairs(a, b, group);
    for (ComparedMetric& compared : metrics_of_group(a, b, group, metrics)) all.push_back(std::move(compared));
  }
  return all;
}

std::string compare_results(const std::string& folder_a, const std::string& folder_b, bool every, std::size_t num_requests,
                            const std::vector<std::string>& where) {
  CsvTable a = read_csv(fs::path(folder_a) / "summary.csv"), b = read_csv(fs::path(folder_b) / "summary.csv");
  choose_rows({&a, &b}, where);
  std::vector<Group> groups = match(a, b);
  for (Group& group : groups) join_equal_pairs(a, b, group);
  const bool has_seeds = std::any_of(groups.begin(), groups.end(), [](const Group& g) { return g.pairs.size() > 1; });
  const bool is_search = a.has("search_rate_per_s") && b.has("search_rate_per_s");
  const bool has_requests = fs::exists(fs::path(folder_a) / "requests.csv") && fs::exists(fs::path(folder_b) / "requests.csv");
  CsvTable requests_a, requests_b;
  if (has_requests) {
    requests_a = read_csv(fs::path(folder_a) / "requests.csv");
    requests_b = read_csv(fs::path(folder_b) / "requests.csv");
  }
  std::string text = fmt::format("A: {}\nB: {}\n", folder_a, folder_b);
  if (has_seeds) text += "* the 95 % confidence interval of B - A over seeds does not hold 0\n";
  for (const Group& group : groups) {
    text += "\n" + group.heading();
    text += metric_table(a, b, group, metrics_of(a, b, every));
    const auto& [row_a, row_b] = group.pairs[0];
    const std::string &run_a = a.rows[row_a][a.at("run")], &run_b = b.rows[row_b][b.at("run")];
    for (const std::string& remark : remarks_on_settings({folder_a, run_a}, {folder_b, run_b})) text += "remark: " + remark + "\n";
    text += remark_on_limits(a, row_a, b, row_b);
    if (!has_requests) continue;
    text += remark_on_traces(asked_of(requests_a, run_a), asked_of(requests_b, run_b), is_search);
    if (num_requests == 0) continue;
    const std::string moved = moved_table(requests_a, requests_b, run_a, run_b, num_requests);
    if (!moved.empty()) text += "requests that moved most (seed " + a.rows[row_a][a.at("seed")] + ")\n" + moved;
  }
  return text;
}

}  // namespace kvlab
