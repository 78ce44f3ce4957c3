#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

// Andes (Liu et al. 2024, arXiv:2404.16283): quality of experience (QoE) is 1 minus the area by which the text that a user has read lags
// the expected line, over the area below that line. A request's rank is what its QoE gains over the next `horizon_s` if it is served
// instead of waiting, per token of its context. Under pressure a waiting request with more to gain takes the place of a running one.
//
// Our definitions: a served request keeps the lag it has, since tokens come faster than they are read. The number of running requests is
// left to the scheduler, where Andes tries several.
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
                       "what becomes of the KV of a request that is overtaken")) {}

  void insert(RequestId r, Entry entry) override {
    if (places_.size() <= index(r)) places_.resize(index(r) + 1);
    places_[index(r)] = members_.size();
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
    return under_pressure_ && preempted_ < seen_ && rank(waiting) < rank(running);
  }
  [[nodiscard]] bool watches_steps() const override { return true; }
  void on_step_end(std::span<const StepEntry> /*entries*/, Span duration) override { latest_step_ = duration; }

  void on_plan() override {
    if (size() == 0) return;
    renew_some();
    const double used = static_cast<double>(view().num_blocks() - view().free_blocks());
    under_pressure_ = used > pressure_frac_ * static_cast<double>(view().num_blocks());
    for (const RequestId r : view().running())
      under_pressure_ = under_pressure_ || static_cast<double>(ns(latest_step_)) > ns_per_token(info(r));
  }

 private:
  [[nodiscard]] Span expected_ttft(const Request& r) const { return has_fact(r.facts, Fact::kTtftSlo) ? r.facts->ttft_slo : ttft_; }
  [[nodiscard]] double ns_per_token(const Request& r) const {
    const bool given = has_fact(r.facts, Fact::kTpotSlo) && r.facts->tpot_slo > Span{0};
    return given ? static_cast<double>(ns(r.facts->tpot_slo)) : 1e9 / tokens_per_s_;
  }

  // The expected line, of slope v, begins at arrival + TTFT. A waiting request lags it from the instant at which it passes the tokens that
  // were delivered, and its lag grows by v; over a time t that is an area of v t^2 / 2 beyond that of a served one. The slope cancels.
  [[nodiscard]] double gain(const Request& r) const {
    const double line_begins = static_cast<double>(ns(r.arrival + expected_ttft(r) - view().now()));  // from now
    const double horizon = static_cast<double>(ns(horizon_));
    const double lags = std::max(0.0, line_begins + r.output_tokens * ns_per_token(r));  // from then on, if it waits
    if (lags >= horizon) return 0;
    const double share = (horizon - lags) / (horizon - line_begins);
    return share * share;
  }
  [[nodiscard]] std::int64_t rank(RequestId r) const override {
    constexpr double kUnits = 1e15;
    const Request& request = info(r);
    return -std::llround(kUnits * gain(request) / request.known_tokens());
  }

  void renew_some() {
    due_.clear();
    const std::uint32_t first = std::min(size(), static_cast<std::uint32_t>(renewals_ + 1) / 2);
    for (std::uint32_t i = 0; i < first; ++i) due_.push_back(at(i));
    for (std::int32_t i = 0; i < renewals_ / 2; ++i) due_.push_back(members_[next_++ % members_.size()]);
    for (const RequestId r : due_) renew(r);
  }

  Span ttft_;
  double tokens_per_s_;
  Span horizon_;
  double pressure_frac_;
  std::int32_t renewals_;
  Preemption mode_;
  std::vector<RequestId> members_;   // that wait, in no order
  std::vector<std::size_t> places_;  // by slot: in members_
  std::size_t next_ = 0;
  std::uint64_t seen_ = 0, preempted_ = 0;
  Span latest_step_{};
  bool under_pressure_ = false;
  std::vector<RequestId> due_;
};

KVLAB_REGISTER(Order, Andes, "andes", "the most quality of experience gained per token of context first, preemptive under pressure",
               "Liu et al. 2024, arXiv:2404.16283; partly our definition");

}  // namespace

}  // namespace kvlab
