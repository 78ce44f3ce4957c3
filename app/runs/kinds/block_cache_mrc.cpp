#include <fmt/format.h>

#include <map>
#include <mutex>

#include "app/results/run_files.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "base/csv.h"
#include "sim/hit_ratio.h"

namespace kvlab {

namespace {

// Read once for all points of a sweep.
class SharedTraces {
 public:
  using Trace = std::shared_ptr<const HitRatioTrace>;
  Trace get(const std::string& key, const std::function<HitRatioTrace()>& load) {
    const std::lock_guard lock(mutex_);
    Trace trace = kept_[key].lock();
    if (!trace) kept_[key] = trace = std::make_shared<const HitRatioTrace>(load());
    last_ = trace;
    return trace;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const HitRatioTrace>> kept_;
  Trace last_;  // keep-alive between runs
};

std::string hit_groups_csv(const std::string& run_id, const std::vector<HitGroup>& groups) {
  std::string text = "run,group,name,requests,lookups,hits,hit_frac,token_hit_frac\n";
  const auto share = [](auto part, auto all) {
    return all > 0 ? fmt::format("{:.6f}", static_cast<double>(part) / static_cast<double>(all)) : std::string();
  };
  for (const HitGroup& g : groups)
    text += csv_line({run_id, g.kind, g.name, std::to_string(g.requests), std::to_string(g.lookups), std::to_string(g.hits),
                      share(g.hits, g.lookups), share(g.hit_tokens, g.prompt_tokens)});
  return text;
}

class HitRatioRun final : public PreparedRun {
 public:
  HitRatioRun(RunKind& kind, SharedTraces& traces, Params& p, std::uint64_t seed) : PreparedRun(kind), traces_(traces), p_(p) {
    block_tokens_ = p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "tokens per block");
    const std::string cache = p.named("block_caches", "lru", "which block is given up").first;
    require_known<BlockCacheRegistry>(p, "block_caches", cache, "block cache");
    run_hit_ratio(p, HitRatioTrace{});  // checks the keys on an empty trace
    trace_ = read_trace(p, seed);
    TraceRequest first;
    has_groups_ = trace_.open()->next(first) && (first.facts != nullptr || first.session >= 0);
    refuse_orders(p);
    p.reject_unread();
    trace_key_ = fmt::format("{} {} {}", seed, block_tokens_, p.child("trace", "trace").text_of_all());
  }

  Findings run(RunFiles& files, const RunOptions& options) override {
    const auto check = [&] { options.check_stop(); };
    const auto trace = traces_.get(trace_key_, [&] { return load_hit_ratio_trace(*trace_.open(), block_tokens_, check); });
    const HitRatioRow row = run_hit_ratio(p_, *trace, check);
    Findings findings;
    findings.rows = {{{"block_cache", row.cache},
                      {"capacity_blocks", std::to_string(row.capacity_blocks)},
                      {"requests", std::to_string(row.result.requests)},
                      {"lookups", std::to_string(row.result.lookups)},
                      {"hits", std::to_string(row.result.hits)},
                      {"hit_frac", fmt::format("{:.6f}", row.result.hit_frac())},
                      {"token_hit_frac", fmt::format("{:.6f}", row.result.token_hit_frac())},
                      {"evictions", std::to_string(row.result.evictions)},
                      {"capacity_gib", row.capacity_gib > 0 ? fmt::format("{:.6f}", row.capacity_gib) : ""}}};
    if (!row.result.groups.empty()) files.add_file("hit_groups.csv", hit_groups_csv(files.id(), row.result.groups));
    return findings;
  }
  [[nodiscard]] std::string out_of_memory() const override {
    return "out of memory: lower 'capacity_blocks', or take a part of the trace with limit_requests";
  }
  [[nodiscard]] std::unique_ptr<TraceSource> only_draws(std::uint64_t seed) const override { return trace_.open_with(seed); }

 private:
  [[nodiscard]] bool writes(const std::string& table) const override {
    return table == "hit_groups.csv" ? has_groups_ : table != "trace.json" || trace_.wants_perfetto;
  }

  SharedTraces& traces_;
  Params p_;
  std::int32_t block_tokens_ = 16;
  TraceInput trace_;
  bool has_groups_ = false;  // the first request has a class, client or session
  std::string trace_key_;
};

// `kind: block_cache_mrc`.
class BlockCacheMrc final : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override {
    return std::make_unique<HitRatioRun>(*this, traces_, p, seed);
  }
  [[nodiscard]] std::set<std::string> tables() const override { return {"requests.csv", "timeline.csv", "hit_groups.csv", "trace.json"}; }

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override { return {"hit_frac", "token_hit_frac"}; }
  SharedTraces traces_;
};

}  // namespace

KVLAB_REGISTER(RunKind, BlockCacheMrc, "block_cache_mrc", "hit ratios of block caches over a request trace", "");

}  // namespace kvlab
