#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/order/batch_search.h"
#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

// QoE: 1 minus the area by which read text lags the expected line, over the area below it. Rank: QoE gained by serving over `horizon_s`,
// per token of context. Our definition: a served request keeps its lag.
class Andes final : public KeyedOrder {
 public:
  explicit Andes(Params& p)
      : ttft_(p.milliseconds("ttft_ms", 1000, 0, 1e9, "expected time to first token of requests without 'ttft_slo_ms'")),
        tokens_per_s_(p.optional<double>("tokens_per_s", 4.8, 0.01, 1e6, "expected reading speed of requests without 'tpot_slo_ms'")),
        horizon_(p.seconds("horizon_s", 50, 0.001, 1e6, "time over which gains are compared")),
        pressure_frac_(p.optional<double>("pressure_frac", 0.9, 0, 1, "share of the blocks in use above which running requests give way")),
        renewals_(p.optional<std::int32_t>("renewals", 64, 1, 1 << 20,
                                           "waiting requests whose rank is renewed before a plan: the first ones, and others in turn")),
        mode_(p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}}, Preemption::kSwap,
                       "what becomes of the KV of a request that is overtaken")),
        sizes_(p.optional<std::int32_t>("batch_sizes", 0, 0, 1024,
                                        "batch sizes that are compared under pressure; 0: the scheduler alone sets the number of running "
                                        "requests")),
        search_steps_(p.optional<std::int32_t>("search_steps", 1, 1, 1 << 20, "steps between two such searches")) {
    if (sizes_ == 0 && p.has("search_steps")) p.fail_at("search_steps", "'search_steps' means nothing without 'batch_sizes': give both");
  }

  void insert(RequestId r, Entry entry) override {
    slot(places_, r) = members_.size();
    in_batch_.resize(places_.size());
    if (entry == Entry::kArrival) in_batch_[index(r)] = false;
    members_.push_back(r);
    KeyedOrder::insert(r, entry);
    if (entry == Entry::kArrival)
      ++seen_;
    else
      ++preempted_;
  }
  void erase(RequestId r) override {
    KeyedOrder::erase(r);
    const RequestId last = members_.back();
    members_[places_[index(r)]] = last;
    places_[index(last)] = places_[index(r)];
    members_.pop_back();
  }

  [[nodiscard]] std::optional<Preemption> overtaking() const override { return mode_; }
  // On average at most one preemption per request.
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const override {
    return !searches() && under_pressure_ && preempted_ < seen_ && rank(waiting) < rank(running);
  }
  Preemption take_off(std::vector<RequestId>& off) override {
    std::uint64_t left = is_searching() && preempted_ < seen_ ? seen_ - preempted_ : 0;
    for (const RequestId r : view().running()) {
      if (left == 0 || in_batch_[index(r)] || view().needed_tokens(r) == 0) continue;
      off.push_back(r);
      --left;
    }
    return mode_;
  }
  [[nodiscard]] bool holds(RequestId r) override { return is_searching() && !in_batch_[index(r)]; }
  void on_admit(RequestId r) override {
    if (!searches()) return;
    in_batch_[index(r)] = true;  // swapped-in requests were no candidates
    members_of_batch_.push_back(r);
  }
  [[nodiscard]] bool watches_steps() const override { return true; }
  void on_step_end(std::span<const StepEntry> entries, Span duration) override {
    latest_step_ = duration;
    ++steps_;
    std::int64_t tokens = 0;
    for (const StepEntry& entry : entries) tokens += entry.tokens;
    const auto requests = static_cast<std::int64_t>(entries.size());
    if (searches() && tokens == requests) observed_.add(static_cast<double>(requests), static_cast<double>(ns(duration)));
  }

  void on_plan() override {
    has_batch_ = has_batch_ && size() > 0;
    if (size() == 0) return;
    renew_some();
    const double used = static_cast<double>(view().num_blocks() - view().free_blocks());
    under_pressure_ = used > pressure_frac_ * static_cast<double>(view().num_blocks());
    for (const RequestId r : view().running())
      under_pressure_ = under_pressure_ || static_cast<double>(ns(latest_step_)) > ns_per_token(info(r));
    if (searches()) search();
  }

 private:
  [[nodiscard]] Span expected_ttft(const Request& r) const { return has_fact(r.facts, Fact::kTtftSlo) ? r.facts->ttft_slo : ttft_; }
  [[nodiscard]] double ns_per_token(const Request& r) const {
    const bool given = has_fact(r.facts, Fact::kTpotSlo) && r.facts->tpot_slo > Span{0};
    return given ? static_cast<double>(ns(r.facts->tpot_slo)) : 1e9 / tokens_per_s_;
  }

  [[nodiscard]] Reader reader(const Request& r) const {
    return {static_cast<double>(ns(r.arrival + expected_ttft(r) - view().now())), ns_per_token(r), r.output_tokens};
  }
  [[nodiscard]] double gain(const Request& r) const {
    const double horizon = static_cast<double>(ns(horizon_));
    const double line_begins = reader(r).line_begins_ns, lags = reader(r).lag_begins();
    if (lags >= horizon) return 0;
    const double share = (horizon - lags) / (horizon - line_begins);
    return share * share;
  }
  [[nodiscard]] std::int64_t rank(RequestId r) const override {
    constexpr double kUnits = 1e15;
    const Request& request = info(r);
    const std::int64_t of_batch = has_batch_ && in_batch_[index(r)] ? kBatchFirst : 0;
    return -of_batch - std::llround(kUnits * gain(request) / request.known_tokens());
  }

  void renew_some() {
    due_.clear();
    const std::uint32_t first = std::min(size(), static_cast<std::uint32_t>(renewals_ + 1) / 2);
    for (std::uint32_t i = 0; i < first; ++i) due_.push_back(at(i));
    for (std::int32_t i = 0; i < renewals_ / 2; ++i) due_.push_back(members_[next_++ % members_.size()]);
    for (const RequestId r : due_) renew(r);
  }

  // ---- the search ----

  static constexpr std::int64_t kBatchFirst = std::int64_t{1} << 60;  // beyond any gain
  [[nodiscard]] bool searches() const { return sizes_ > 0; }
  [[nodiscard]] bool is_searching() const { return has_batch_ && under_pressure_; }
  [[nodiscard]] double step_ns(std::int32_t requests, std::int64_t context) const {
    const std::optional<Span> known = view().step_time({requests, context, 0, 0});
    return known ? static_cast<double>(ns(*known)) : observed_.step_ns(requests);
  }

  void search() {
    if (!under_pressure_) return leave_batch();
    if (has_batch_ && steps_ < next_search_ && !view().running().empty()) return;
    next_search_ = steps_ + search_steps_;
    candidates_.assign(view().running().begin(), view().running().end());
    for (const RequestId r : due_)
      if (!info(r).is_parked && !info(r).is_leaving && is_waiting(r) && is_first_mention(r)) candidates_.push_back(r);
    leave_batch();
    batch_.clear();
    std::int64_t memory = view().free_blocks();
    for (const RequestId r : candidates_) {
      const Request& request = info(r);
      const std::int64_t blocks = std::min(view().blocks_for(r, request.known_tokens() + 1), view().num_blocks());
      if (request.is_running) memory += static_cast<std::int64_t>(request.blocks.size());
      batch_.push_back({reader(request), request.known_tokens(), blocks, false});
    }
    const std::vector<std::int32_t> sizes = batch_sizes(static_cast<std::int32_t>(candidates_.size()), sizes_);
    choose_batch(batch_, sizes, memory, static_cast<double>(ns(horizon_)),
                 [&](std::int32_t requests, std::int64_t context) { return step_ns(requests, context); });
    has_batch_ = true;
    for (std::size_t i = 0; i < candidates_.size(); ++i) set_in_batch(candidates_[i], batch_[i].is_chosen);
  }
  // due_ may name a request twice.
  [[nodiscard]] bool is_first_mention(RequestId r) const {
    const auto waiting = candidates_.begin() + static_cast<std::ptrdiff_t>(view().running().size());
    return std::find(waiting, candidates_.end(), r) == candidates_.end();
  }
  void set_in_batch(RequestId r, bool is_in) {
    in_batch_[index(r)] = is_in;
    renew(r);
    if (is_in) members_of_batch_.push_back(r);
  }
  void leave_batch() {
    has_batch_ = false;
    for (const RequestId r : members_of_batch_) {
      in_batch_[index(r)] = false;
      if (index(r) < places_.size() && is_waiting(r)) renew(r);
    }
    members_of_batch_.clear();
  }

  Span ttft_;
  double tokens_per_s_;
  Span horizon_;
  double pressure_frac_;
  std::int32_t renewals_;
  Preemption mode_;
  std::int32_t sizes_, search_steps_;
  std::vector<RequestId> members_;   // in no order
  std::vector<std::size_t> places_;  // by slot: in members_
  std::size_t next_ = 0;
  std::uint64_t seen_ = 0, preempted_ = 0;
  Span latest_step_{};
  bool under_pressure_ = false;
  std::vector<RequestId> due_;
  std::vector<bool> in_batch_;
  std::vector<RequestId> candidates_, members_of_batch_;
  std::vector<BatchCandidate> batch_;
  ObservedSteps observed_;
  std::int64_t steps_ = 0, next_search_ = 0;
  bool has_batch_ = false;
};

KVLAB_REGISTER(Order, Andes, "andes", "the most quality of experience gained per token of context first, preemptive under pressure",
               "Liu et al. 2024, arXiv:2404.16283; partly our definition");

}  // namespace

}  // namespace kvlab
