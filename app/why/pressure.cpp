#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "app/runs/report/known_metrics.h"
#include "app/why/why.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr double kNs = 1e-9;
constexpr double kBusyLink = 0.5, kFullStep = 0.8;  // thresholds worth reporting

// Over all replicas; "": the only pool.
struct PoolRanks {
  std::string name;
  double ranks = 1;
  double most_running = 0;  // requests per step; 0: no limit
};

struct Sample {
  double at_ns = 0, running = 0, waiting = 0, used = 0, available = 0;
  std::size_t replica = 0;
};

// "8192/any": 0 for none.
std::vector<double> by_pool(const std::string& text, std::size_t pools) {
  std::vector<double> values;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    values.push_back(real_or(text.substr(begin, end - begin), 0));
    begin = end + 1;
  }
  values.resize(std::max(pools, std::size_t{1}), values.empty() ? 0 : values.back());
  return values;
}

std::vector<Sample> samples_of(const fs::path& run) {
  std::vector<Sample> samples;
  if (!fs::exists(run / "timeline.csv")) return samples;
  const CsvTable t = read_csv(run / "timeline.csv");
  if (t.rows.empty()) return samples;
  const auto value = [&](const std::vector<std::string>& row, const char* column) { return real_or(row[t.at(column)], 0); };
  for (const auto& row : t.rows)
    samples.push_back({value(row, "time_ns"), value(row, "running"), value(row, "waiting"), value(row, "used_blocks"),
                       value(row, "cached_blocks") + value(row, "free_blocks"), static_cast<std::size_t>(value(row, "replica"))});
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.at_ns < b.at_ns; });
  return samples;
}

// Per replica if equal in all pools, else 0.
double ranks_per_replica(const std::vector<PoolRanks>& pools, const std::vector<Sample>& samples) {
  double replicas = 0;
  std::size_t last = 0;
  for (const PoolRanks& pool : pools) replicas += pool.ranks;
  for (const Sample& s : samples) last = std::max(last, s.replica);
  const double ranks = static_cast<double>(last + 1) / replicas;
  return ranks == std::floor(ranks) ? ranks : 0;
}

std::vector<PoolRanks> pools_of(const fs::path& run, const SummaryRow& summary, const std::vector<Sample>& samples) {
  std::vector<PoolRanks> pools;
  if (fs::exists(run / "pools.csv")) {
    const CsvTable table = read_csv(run / "pools.csv");
    for (const auto& row : table.rows) {
      if (row[table.at("role")] != "encode") pools.push_back({row[table.at("pool")], real_or(row[table.at("replicas")], 1), 0});
    }
  }
  const double ranks = pools.empty() ? 0 : ranks_per_replica(pools, samples);
  for (PoolRanks& pool : pools) pool.ranks *= ranks;
  if (ranks == 0) pools = {{"", std::numeric_limits<double>::max(), 0}};  // a rank's pool is unknown, or there is only one
  const std::vector<double> limits = by_pool(summary.text("max_step_seqs"), pools.size());
  for (std::size_t i = 0; i < pools.size(); ++i) pools[i].most_running = limits[i];
  return pools;
}

struct Stretch {
  double begin_ns = 0, end_ns = 0;
  bool is_to_the_end = false;
  double share_in_window = 0;
};

// Samples in which some replica is full; share: in the window.
Stretch longest(const std::vector<Sample>& samples, const WhyWindow& window, const std::function<bool(const Sample&)>& is_full) {
  std::map<double, bool> full;  // by time
  for (const Sample& s : samples) full[s.at_ns] = full[s.at_ns] || is_full(s);
  Stretch best;
  double began = -1, inside = 0, inside_full = 0;
  for (const auto& [at, now] : full) {
    if (at >= window.begin_ns && at <= window.end_ns) ++inside, inside_full += now ? 1 : 0;
    if (!now) {
      began = -1;
      continue;
    }
    if (began < 0) began = at;
    if (at - began >= best.end_ns - best.begin_ns) best = {began, at, false, 0};
  }
  const double last = full.empty() ? 0 : full.rbegin()->first;
  best.is_to_the_end = best.end_ns >= std::min(last, window.end_ns);
  best.share_in_window = inside > 0 ? inside_full / inside : 0;
  return best;
}

std::string seconds(double ns) { return fmt::format("{:.4g}", ns * kNs); }

// "" if full in less than a tenth of the window and never for two samples.
std::string text_of(const std::string& subject, const Stretch& s) {
  if (s.share_in_window < 0.1 && s.end_ns <= s.begin_ns) return "";
  if (s.end_ns <= s.begin_ns) return fmt::format("{} in {:.0f} % of the samples of that time", subject, 100 * s.share_in_window);
  return s.is_to_the_end ? fmt::format("{} from {} s on", subject, seconds(s.begin_ns))
                         : fmt::format("{} from {} to {} s", subject, seconds(s.begin_ns), seconds(s.end_ns));
}

void add_pool_sentences(const PoolRanks& pool, const std::vector<Sample>& own, const WhyWindow& window, std::vector<std::string>& all) {
  const std::string of = pool.name.empty() ? "" : " of " + pool.name;
  const auto add = [&](const std::string& subject, const std::function<bool(const Sample&)>& is_full) {
    if (const std::string text = text_of(subject, longest(own, window, is_full)); !text.empty()) all.push_back(text);
  };
  constexpr double kTenth = 10;
  add(fmt::format("KV memory{} was full", of), [](const Sample& s) { return s.available * kTenth < s.available + s.used; });
  if (pool.most_running > 0)
    add(fmt::format("the limit of {:.0f} sequences{} was reached", pool.most_running, of),
        [&](const Sample& s) { return s.running >= pool.most_running; });
}

// Busy more than half of the time.
void add_links(const fs::path& run, std::vector<std::string>& all) {
  if (!fs::exists(run / "links.csv")) return;
  const CsvTable t = read_csv(run / "links.csv");
  for (const auto& row : t.rows) {
    double busy = 0;
    if (!parse_real(row[t.at("busy_frac")], busy) || busy < kBusyLink) continue;
    all.push_back(fmt::format("the link {} of {} replica {} was busy {:.0f} % of the time", row[t.at("direction")], row[t.at("pool")],
                              row[t.at("replica")], 100 * busy));
  }
}

}  // namespace

SummaryRow::SummaryRow(const fs::path& run) : table_(read_csv(run / "summary.csv")) {
  if (table_.rows.empty()) throw InputError(table_.file + ": has no row");
}

std::string SummaryRow::text(const std::string& column) const { return table_.has(column) ? table_.rows[0][table_.at(column)] : ""; }

double SummaryRow::number(const std::string& column) const { return real_or(text(column), std::numeric_limits<double>::quiet_NaN()); }

std::vector<std::string> full_in(const fs::path& run, const SummaryRow& summary, const WhyWindow& window) {
  std::vector<std::string> all;
  const std::vector<Sample> samples = samples_of(run);
  double first = 0;
  for (const PoolRanks& pool : pools_of(run, summary, samples)) {
    std::vector<Sample> own;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(own), [&](const Sample& s) {
      const auto replica = static_cast<double>(s.replica);
      return replica >= first && replica - first < pool.ranks;
    });
    first += pool.ranks;
    add_pool_sentences(pool, own, window, all);
  }
  double tokens = 0;
  if (parse_real(summary.text("max_step_tokens"), tokens) && summary.number("batch_mean_tokens") >= kFullStep * tokens)
    all.push_back(fmt::format("steps had {:.0f} of {:.0f} tokens in the mean", summary.number("batch_mean_tokens"), tokens));
  add_links(run, all);
  return all;
}

std::vector<std::string> load_in(const fs::path& run, const SummaryRow& summary) {
  std::vector<std::string> all;
  std::map<double, double> waiting;  // over all replicas, by time
  for (const Sample& s : samples_of(run)) waiting[s.at_ns] += s.waiting;
  double most = 0;
  for (const auto& [at, count] : waiting) most = std::max(most, count);
  if (most > 0) all.push_back(fmt::format("up to {:.0f} request{} waited", most, most == 1 ? "" : "s"));
  for (const auto& [column, one, several] :
       {std::tuple{"preemptions", "preemption", "preemptions"}, {"rejected", "rejected request", "rejected requests"}})
    if (const double count = summary.number(column); count > 0) all.push_back(fmt::format("{:.0f} {}", count, count == 1 ? one : several));
  if (const double overload = summary.number("overload_frac"); overload >= 0.005)
    all.push_back(fmt::format("overload {:.0f} % of the time", 100 * overload));
  return all;
}

}  // namespace kvlab
