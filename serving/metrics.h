#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "policies/request.h"
#include "serving/histogram.h"

namespace kvlab {

const char* outcome_name(Outcome outcome);

class ReplicaState;
struct InFlightStep;

// State of one replica. Tokens are counted since the sample before.
struct TimelineSample {
  Time at{};
  std::uint32_t replica = 0;
  std::int64_t running = 0, waiting = 0, swapped = 0;
  std::int64_t used_blocks = 0, cached_blocks = 0, free_blocks = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0;
};

enum class RequestEvent : std::uint8_t { kPreempted, kSwappedOut, kSwappedIn, kFinished, kRejected, kExported, kImported };
struct EventRecord {
  std::uint32_t replica = 0;
  std::uint64_t request = 0;
  Time at{};
  RequestEvent event{};
};

struct TransferRecord {
  std::uint64_t request = 0;
  std::uint32_t from = 0, to = 0;  // ranks, over all replicas
  std::int32_t tokens = 0;         // with KV on `to` at `end`
  std::int64_t bytes = 0, calls = 0;
  Time ready{}, asked{}, end{};  // KV complete on `from`; `to` has room; copy done
};

class RunSink {
 public:
  virtual ~RunSink() = default;
  virtual void request(const RequestRecord&) {}
  virtual void sample(const TimelineSample&) {}
  // When it begins.
  virtual void transfer(const TransferRecord&) {}
  // True: delivers steps and events, without fast-forward.
  [[nodiscard]] virtual bool wants_steps() const { return false; }
  // A timed step, just after its plan or before its output.
  virtual void step(const InFlightStep&, const ReplicaState&) {}
  virtual void event(const EventRecord&) {}
};

struct Distribution {
  std::uint64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Sorts in place. Percentiles interpolate linearly between order statistics (numpy's default).
Distribution distribution_of(std::vector<std::int64_t>& values);

// In the order of summary.csv.
enum class SloTerm : std::uint8_t { kTtft, kTpot, kTbt, kE2e };
inline constexpr std::array<const char*, 4> kSloTermNames = {"ttft", "tpot", "tbt", "e2e"};
using SloMisses = std::array<bool, kSloTermNames.size()>;  // by SloTerm

struct SloTarget {
  bool is_set = false;
  // Upper bounds. tpot: (last - first) / (out - 1), 0 for one token. e2e: from arrival to last token.
  Span ttft{}, tpot{}, e2e = Span::max();
  // Bound of the tbt_ppm-quantile of the request's gaps between tokens, by nearest rank.
  Span tbt = Span::max();
  std::int32_t tbt_ppm = kEveryGap;
  static constexpr std::int32_t kEveryGap = 1'000'000;

  // The number of gaps that may exceed tbt.
  [[nodiscard]] std::int64_t late_gaps_allowed(std::int64_t gaps) const { return gaps * (kEveryGap - tbt_ppm) / kEveryGap; }
  static constexpr SloTarget none() { return {true, Span::max(), Span::max(), Span::max()}; }
};

// A client's targets replace its class's, which replace the run's; unset ones mean no target.
struct Slo : SloTarget {
  std::map<ClassName, SloTarget> classes{};
  std::map<std::int64_t, SloTarget> clients{};
  [[nodiscard]] bool has_targets() const { return is_set || !classes.empty() || !clients.empty(); }
};

// Per output token after the first, in ns; 0 for one token.
std::int64_t tpot_ns(const RequestRecord& record);

// The run's targets, with the request's own in place. A request's TBT limit has the run's quantile, else covers every gap.
SloTarget targets_of(const RequestRecord& record, const Slo& of_run);
// Judged at `cut_off` if unfinished. A rejected request misses none.
SloMisses missed_terms(const RequestRecord& record, const SloTarget& slo, Time cut_off = kNever);
bool has_attained(const RequestRecord& record, const SloTarget& slo);
// The request has left, or had missed a target at `cut_off`.
bool is_judged(const RequestRecord& record, const SloTarget& slo, Time cut_off);

// Values of one metric: exact up to kExact of them, then in a LogHistogram (quantiles within 0.2 %).
class Values {
 public:
  static constexpr std::size_t kExact = 1'000'000;
  void add(std::int64_t value) {
    if (counted_.count() > 0) return counted_.add(value);
    exact_.push_back(value);
    if (exact_.size() > kExact) count_all();
  }
  Distribution finish();

 private:
  void count_all();
  std::vector<std::int64_t> exact_;
  LogHistogram counted_;
};
Distribution distribution_of(const LogHistogram& histogram, double scale = 1);

// Attainment is over requests with targets that were completed, rejected, or cut off after a miss.
class MetricsCollector {
 public:
  explicit MetricsCollector(const Slo& slo, Time count_from) : slo_(slo), count_from_(count_from) {}
  // cut_off: the run's end, for unfinished requests. Without a session, a request counts as a turn of its program.
  void add(const RequestRecord& record, Time cut_off = kNever);
  // With the record of add(); only for sessions. has_more: a turn waits for it. Sessions with independent turns are held until finish().
  void add_turn(const RequestRecord& record, bool has_more);
  // A completed request; below 0: not followed.
  void add_qoe(const RequestRecord& record, double qoe);
  LogHistogram& itl() { return itl_; }

  struct Latencies {
    Distribution ttft, tpot, itl, e2e, queueing;  // ns; TTFT and E2E from arrival
    Distribution normalized;                      // ns per output token
    // ns, from first arrival to last token of fully completed sessions, or of programs without sessions.
    Distribution jct;
    Distribution qoe_loss;  // ppm: 1e6 (1 - QoE)
    double slo_attainment_frac = 0;
    std::uint64_t attained = 0, counted = 0, judged = 0, completed = 0, rejected = 0, unfinished = 0;
    std::array<std::uint64_t, kSloTermNames.size()> missed{};  // judged requests by missed limit
    std::uint64_t judged_rejected = 0;
    std::int64_t prompt_tokens = 0, output_tokens = 0;
  };
  Latencies finish();
  [[nodiscard]] Time count_from() const { return count_from_; }
  [[nodiscard]] const Slo& slo() const { return slo_; }

 private:
  struct Job {
    Time arrival = kNever, end = kStart;
    bool has_more = false;    // a turn waits for the latest one
    bool is_chain = false;    // turns wait for each other
    bool is_complete = true;  // of the turns that left
  };
  static void add_to(Job& job, const RequestRecord& record);
  void count(const Job& job);
  void judge(const RequestRecord& record, const SloTarget& slo, Time cut_off);

  Slo slo_;
  Time count_from_;
  LogHistogram itl_;
  Values ttft_, tpot_, e2e_, queueing_, normalized_, jct_, qoe_loss_;
  std::unordered_map<std::int64_t, Job> jobs_;      // by session
  std::unordered_map<std::int64_t, Job> programs_;  // of requests without a session
  Latencies all_;                                   // counts so far
};

struct GroupRow {
  std::string name;  // class, or client number
  std::uint64_t requests = 0, completed = 0, unfinished = 0;
  std::uint64_t judged = 0, attained = 0;  // by the request's own targets if any
  Distribution ttft, tpot, e2e;            // ns, of completed requests; TPOT with at least two tokens
  // Prompts of scheduled requests, and their cached tokens at first admission.
  std::int64_t prompt_tokens = 0, hit_tokens = 0;
  double service_tokens = 0;  // prompt tokens after the first token, plus twice the output tokens (VTC weights)
  double qoe_sum = 0;         // over the followed requests
  std::uint64_t followed = 0;
};

struct GroupSummary {
  std::vector<GroupRow> classes, clients;  // by name, by number; empty without the fact
  // Largest service difference of clients with unfinished requests at the run's end; absent with fewer than two. VTC (Sheng et al. 2024)
  // bounds it for clients that always have waiting requests.
  std::optional<double> service_gap_tokens;
};

class GroupMetrics {
 public:
  // qoe: below 0: not followed.
  void add(const RequestRecord& record, bool judged, bool attained, double qoe = -1);
  GroupSummary finish();

 private:
  struct Group {
    GroupRow row;
    Values ttft, tpot, e2e;
  };
  static void add_to(Group& group, const RequestRecord& record, bool judged, bool attained, double qoe);
  template <class Key>
  static std::vector<GroupRow> rows_of(std::map<Key, Group>& groups);

  std::map<ClassName, Group> classes_;
  std::map<std::int64_t, Group> clients_;
};

}  // namespace kvlab
