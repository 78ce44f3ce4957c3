#include "traces/trace_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_set>

namespace kvlab {

namespace {

class Lengths {
 public:
  void add(std::int32_t length) { ++counts_[length]; }

  [[nodiscard]] LengthSummary summary() const {
    LengthSummary s;
    std::uint64_t total = 0;
    double sum = 0;
    for (const auto& [length, count] : counts_) {
      total += count;
      sum += static_cast<double>(length) * static_cast<double>(count);
    }
    if (total == 0) return s;
    s.mean = sum / static_cast<double>(total);
    s.min = counts_.begin()->first;
    s.max = counts_.rbegin()->first;
    s.p50 = quantile(total, 0.5);
    s.p90 = quantile(total, 0.9);
    s.p99 = quantile(total, 0.99);
    return s;
  }

 private:
  // Smallest length that at least `share` of the requests do not exceed.
  [[nodiscard]] std::int32_t quantile(std::uint64_t total, double share) const {
    std::uint64_t below = 0;
    for (const auto& [length, count] : counts_) {
      below += count;
      if (static_cast<double>(below) >= share * static_cast<double>(total)) return length;
    }
    return counts_.rbegin()->first;
  }

  std::map<std::int32_t, std::uint64_t> counts_;
};

// Mean and variance (Welford 1962).
class Gaps {
 public:
  void add_arrival(Time at) {
    if (!first_) first_ = at;
    if (last_) add(to_s(at - *last_));
    last_ = at;
  }
  void fill(TraceSummary& s) const {
    if (!first_) return;
    s.duration_s = to_s(*last_ - *first_);
    if (s.duration_s > 0) s.rate_per_s = static_cast<double>(count_) / s.duration_s;
    if (count_ > 1 && mean_ > 0) s.gap_cv = std::sqrt(squares_ / static_cast<double>(count_ - 1)) / mean_;
  }

 private:
  void add(double gap_s) {
    ++count_;
    const double delta = gap_s - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (gap_s - mean_);
  }

  std::optional<Time> first_, last_;
  std::uint64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

class Sharing {
 public:
  void add(const TraceRequest& request, TraceSummary& s) {
    if (request.hashes.empty()) return;
    s.hash_tokens = request.hash_tokens;
    const auto of_prompt = static_cast<std::size_t>(request.prompt_tokens / request.hash_tokens);
    for (const std::uint64_t hash : request.hashes.first(std::min(of_prompt, request.hashes.size()))) {
      ++s.num_prompt_blocks;
      if (seen_.contains(hash)) ++s.num_seen_blocks;
    }
    seen_.insert(request.hashes.begin(), request.hashes.end());
    s.num_distinct_blocks = seen_.size();
  }

 private:
  std::unordered_set<std::uint64_t> seen_;
};

void print_lengths(std::ostream& out, const char* name, const LengthSummary& s) {
  out << fmt::format("{:<14} mean {:.1f}, min {}, p50 {}, p90 {}, p99 {}, max {}\n", name, s.mean, s.min, s.p50, s.p90, s.p99, s.max);
}

}  // namespace

TraceSummary summarize(TraceSource& source) {
  TraceSummary s;
  Lengths prompts;
  Lengths outputs;
  Gaps gaps;
  Sharing sharing;
  std::unordered_set<std::int64_t> sessions;
  for (TraceRequest request; source.next(request);) {
    ++s.num_requests;
    prompts.add(request.prompt_tokens);
    outputs.add(request.output_tokens);
    if (request.is_follow_up)
      ++s.num_follow_ups;
    else
      gaps.add_arrival(request.arrival);
    if (request.session >= 0) sessions.insert(request.session);
    sharing.add(request, s);
  }
  gaps.fill(s);
  s.num_sessions = sessions.size();
  s.prompt_tokens = prompts.summary();
  s.output_tokens = outputs.summary();
  s.concurrency = source.closed_loop().concurrency;
  s.skipped = source.skipped();
  s.remark = source.remark();
  return s;
}

void inspect(TraceSource& source, std::ostream& out) {
  const TraceSummary s = summarize(source);
  out << fmt::format("{:<14} {}\n", "requests", s.num_requests);
  if (s.concurrency > 0)
    out << fmt::format("{:<14} closed loop, {} sessions at once\n", "arrivals", s.concurrency);
  else
    out << fmt::format("{:<14} {:.3f} s, {:.4g} per s, cv of gaps {:.3f}\n", "arrivals", s.duration_s, s.rate_per_s, s.gap_cv);
  print_lengths(out, "prompt_tokens", s.prompt_tokens);
  print_lengths(out, "output_tokens", s.output_tokens);
  if (s.num_sessions > 0) {
    out << fmt::format("{:<14} {}, {} of the requests are later turns sent after an answer\n", "sessions", s.num_sessions,
                       s.num_follow_ups);
  }
  if (s.num_prompt_blocks == 0) {
    out << fmt::format("{:<14} unknown: nothing is shared between requests\n", "content");
  } else {
    const double share = 100.0 * static_cast<double>(s.num_seen_blocks) / static_cast<double>(s.num_prompt_blocks);
    out << fmt::format("{:<14} {} full prompt blocks of {} tokens, {:.1f} % seen before; {} different blocks\n", "content",
                       s.num_prompt_blocks, s.hash_tokens, share, s.num_distinct_blocks);
  }
  if (!s.skipped.empty()) out << fmt::format("{:<14} {}\n", "skipped", s.skipped);
  if (!s.remark.empty()) out << fmt::format("{:<14} {}\n", "remark", s.remark);
}

}  // namespace kvlab
