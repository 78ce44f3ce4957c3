#include <vector>

#include "policies/order/swapping_order.h"

namespace kvlab {

namespace {

// A request joins the first level with a quantum that covers its prefill. Steps charge their whole time; a used-up quantum moves it to the
// front of the next level.
class Mlfq final : public SwappingOrder {
 public:
  explicit Mlfq(Params& p)
      : SwappingOrder(p),
        quantum_(p.milliseconds("quantum_ms", 10, 0.001, 1e6, "quantum of the first level")),
        factor_(p.optional<std::int32_t>("factor", 2, 2, 1000, "quantum of a level over that of the one before")),
        levels_(p.optional<std::int32_t>("levels", 16, 1, 64, "number of levels; requests in the last one stay there")),
        prefill_tokens_per_s_(p.optional<double>("prefill_tokens_per_s", 0, 0, 1e9,
                                                 "rate by which a prompt's prefill time is estimated; 0: as measured in steps so far")),
        starvation_(p.milliseconds("starvation_ms", 3000, 0, 1e9, "a request that waits longer is promoted to the first level; 0: never")),
        scan_steps_(p.optional<std::int32_t>("scan_steps", 1000, 1, 1 << 30, "steps between two looks for such requests")) {}

  void insert(RequestId r, Entry entry) override {
    State& state = slot(states_, r);
    if (entry == Entry::kArrival) {
      state = {join_level(info(r)), Span{0}, back_++, view().now()};
    } else {
      state.place = front_--;
      state.served = view().now();
    }
    SwappingOrder::insert(r, entry);
  }

  [[nodiscard]] bool watches_steps() const override { return true; }

  void on_step_end(std::span<const StepEntry> entries, Span duration) override {
    learn(entries, duration);
    for (const StepEntry& entry : entries) {
      State& state = states_[index(entry.request)];
      state.served = view().now();
      state.used += duration;
      if (state.used <= quantum_of(state.level) || state.level == levels_ - 1) continue;
      ++state.level;
      state.used = Span{0};
      state.place = front_--;
      renew(entry.request);  // preempted while the step ran
    }
    if (++steps_ % scan_steps_ == 0 && starvation_ > Span{0}) promote_starved();
  }

 private:
  struct State {
    std::int32_t level = 0;
    Span used{};             // of the level's quantum
    std::int64_t place = 0;  // smallest first
    Time served{};
  };

  static constexpr std::int64_t kPlaces = std::int64_t{1} << 56;  // both counters stay far below
  [[nodiscard]] bool goes_before(RequestId waiting, RequestId running) const override { return level(waiting) < level(running); }
  [[nodiscard]] std::int32_t level(RequestId r) const { return states_[index(r)].level; }
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return states_[index(r)].level * kPlaces + states_[index(r)].place; }
  [[nodiscard]] Span quantum_of(std::int32_t level) const {
    constexpr std::int64_t kLongest = std::int64_t{1} << 60;
    std::int64_t quantum = ns(quantum_);
    for (std::int32_t i = 0; i < level; ++i) quantum = quantum > kLongest / factor_ ? kLongest : quantum * factor_;
    return Span(quantum);
  }

  [[nodiscard]] std::int32_t join_level(const Request& r) const {
    const double rate = prefill_tokens_per_s_ > 0 ? prefill_tokens_per_s_ : learned_rate();
    if (!(rate > 0)) return 0;
    const double prefill_ns = r.prompt_tokens / rate * 1e9;
    std::int32_t level = 0;
    while (level < levels_ - 1 && static_cast<double>(ns(quantum_of(level))) < prefill_ns) ++level;
    return level;
  }
  [[nodiscard]] double learned_rate() const {
    return prefill_time_ > Span{0} ? static_cast<double>(prefill_tokens_) / to_s(prefill_time_) : 0;
  }
  void learn(std::span<const StepEntry> entries, Span duration) {
    std::int64_t tokens = 0, ended = 0;  // ended: tokens that pass their last layers
    for (const StepEntry& entry : entries) {
      tokens += entry.tokens;
      ended += entry.ends() ? entry.tokens : 0;
    }
    if (tokens <= static_cast<std::int64_t>(entries.size())) return;
    prefill_tokens_ += ended;
    prefill_time_ += duration;
  }

  void promote_starved() {
    starved_.clear();
    for (std::uint32_t i = 0; i < size(); ++i) {
      const State& state = states_[index(at(i))];
      if (state.level > 0 && view().now() - state.served >= starvation_) starved_.push_back(at(i));
    }
    for (const RequestId r : starved_) {
      states_[index(r)].level = 0;
      states_[index(r)].used = Span{0};
      states_[index(r)].place = back_++;
      renew(r);
    }
  }

  Span quantum_;
  std::int32_t factor_, levels_;
  double prefill_tokens_per_s_;
  Span starvation_;
  std::int32_t scan_steps_;
  std::vector<State> states_;  // by slot
  std::int64_t front_ = -1, back_ = 0;
  std::int64_t steps_ = 0, prefill_tokens_ = 0;
  Span prefill_time_{};
  std::vector<RequestId> starved_;
};

KVLAB_REGISTER(Order, Mlfq, "mlfq", "skip-join multi-level feedback queue: quanta, demotion, promotion of the starved; preemptive",
               "FastServe, Wu et al. 2023, arXiv:2305.05920");

}  // namespace

}  // namespace kvlab
