#include <algorithm>
#include <deque>
#include <vector>

#include "policies/order/swapping_order.h"

namespace kvlab {

namespace {

// Of prompts, in the steps so far.
class PrefillRate {
 public:
  // False: a step without prompts.
  bool add(std::span<const StepEntry> entries, Span duration) {
    std::int64_t tokens = 0, ended = 0;  // ended: tokens that pass their last layers
    for (const StepEntry& entry : entries) {
      tokens += entry.tokens;
      ended += entry.ends() ? entry.tokens : 0;
    }
    if (tokens <= static_cast<std::int64_t>(entries.size())) return false;
    tokens_ += ended;
    time_ += duration;
    return true;
  }
  // `given`, or the measured one if that is 0; 0: unknown.
  [[nodiscard]] double per_second(double given) const {
    return given == 0 && time_ > Span{0} ? static_cast<double>(tokens_) / to_s(time_) : given;
  }

 private:
  std::int64_t tokens_ = 0;
  Span time_{};
};

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
    rate_.add(entries, duration);
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
    const double rate = rate_.per_second(prefill_tokens_per_s_);
    if (!(rate > 0)) return 0;
    const double prefill_ns = r.prompt_tokens / rate * 1e9;
    std::int32_t level = 0;
    while (level < levels_ - 1 && static_cast<double>(ns(quantum_of(level))) < prefill_ns) ++level;
    return level;
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
  std::int64_t steps_ = 0;
  PrefillRate rate_;
  std::vector<RequestId> starved_;
};

KVLAB_REGISTER(Order, Mlfq, "mlfq", "skip-join multi-level feedback queue: quanta, demotion, promotion of the starved; preemptive",
               "FastServe, Wu et al. 2023, arXiv:2305.05920");

// A reached estimate is doubled. Each `age_s` of waiting promotes a request by a queue, from the first to the head of all. Number and width
// of the queues are our choice.
class Alise final : public SwappingOrder {
 public:
  explicit Alise(Params& p)
      : SwappingOrder(p),
        queues_(p.optional<std::int32_t>("queues", 4, 1, 32, "number of queues")),
        first_(p.milliseconds("first_queue_ms", 2000, 0.001, 1e9,
                              "predicted time to come of requests in the first queue, at most; each "
                              "further one covers twice as much, the last one all")),
        age_(p.seconds("age_s", 5, 0.001, 1e6, "waiting time after which a request is promoted by one queue")),
        prefill_tokens_per_s_(p.optional<double>("prefill_tokens_per_s", 0, 0, 1e9,
                                                 "rate by which prefill times are estimated; 0: as measured in steps so far")),
        token_(p.milliseconds("token_ms", 0, 0, 1e3, "estimated time per output token; 0: as measured in steps so far")) {}

  [[nodiscard]] bool uses_predictor() const override { return true; }
  void insert(RequestId r, Entry entry) override {
    Job& job = slot(jobs_, r);
    if (entry == Entry::kArrival) job = {predictor().output_tokens(info(r)), prefill_time(info(r)), token_time(), 0, 0};
    job.wait = ++waits_;
    ageing_.push_back({r, job.wait, view().now() + age_});
    SwappingOrder::insert(r, entry);
  }
  void erase(RequestId r) override {
    SwappingOrder::erase(r);
    jobs_[index(r)].wait = 0;
  }
  void on_plan() override {
    promote();
    SwappingOrder::on_plan();
  }

  [[nodiscard]] bool watches_steps() const override { return true; }
  void on_step_end(std::span<const StepEntry> entries, Span duration) override {
    if (rate_.add(entries, duration)) return;
    ++decode_steps_;
    decode_time_ += duration;
  }

 private:
  struct Job {
    std::int32_t predicted = 1;   // total output tokens
    Span prefill{}, token{};      // fixed, so that ranks change only with progress
    std::int32_t promotions = 0;  // kept until it leaves
    std::uint64_t wait = 0;       // 0: not waiting
  };
  struct Ageing {
    RequestId request{};
    std::uint64_t wait = 0;
    Time due{};
  };
  static constexpr std::int64_t kWidth = std::int64_t{1} << 56;  // in ns: two years

  [[nodiscard]] bool goes_before(RequestId waiting, RequestId running) const override { return rank(waiting) < rank(running); }
  [[nodiscard]] Span prefill_time(const Request& r) const {
    const double rate = rate_.per_second(prefill_tokens_per_s_);
    return rate > 0 ? Span(static_cast<std::int64_t>(r.prompt_tokens / rate * 1e9)) : Span{0};
  }
  // 1 ns if unknown.
  [[nodiscard]] Span token_time() const {
    if (token_ > Span{0}) return token_;
    return std::max(Span{1}, decode_steps_ > 0 ? decode_time_ / decode_steps_ : Span{0});
  }
  [[nodiscard]] std::int64_t remaining_ns(RequestId r) const {
    const Job& job = jobs_[index(r)];
    std::int64_t total = job.predicted;
    while (total <= info(r).output_tokens) total *= 2;
    const Span prefill = info(r).output_tokens == 0 ? job.prefill : Span{0};
    return std::min(ns(prefill + job.token * (total - info(r).output_tokens)), kWidth - 1);
  }
  [[nodiscard]] std::int64_t rank(RequestId r) const override {
    const std::int64_t left = remaining_ns(r);
    std::int32_t queue = 0;
    for (std::int64_t end = ns(first_); queue < queues_ - 1 && left > end && end < kWidth / 2; end *= 2) ++queue;
    queue -= jobs_[index(r)].promotions;
    return queue < 0 ? -1 : queue * kWidth + left;
  }

  void promote() {
    for (; !ageing_.empty() && ageing_.front().due <= view().now(); ageing_.pop_front()) {
      const Ageing aged = ageing_.front();
      Job& job = jobs_[index(aged.request)];
      if (job.wait != aged.wait || job.promotions >= queues_) continue;
      ++job.promotions;
      renew(aged.request);
      ageing_.push_back({aged.request, aged.wait, view().now() + age_});
    }
  }

  std::int32_t queues_;
  Span first_, age_;
  double prefill_tokens_per_s_;
  Span token_;
  std::vector<Job> jobs_;  // by slot
  std::deque<Ageing> ageing_;
  std::uint64_t waits_ = 0;
  PrefillRate rate_;
  std::int64_t decode_steps_ = 0;
  Span decode_time_{};
};

KVLAB_REGISTER(Order, Alise, "alise", "shortest predicted time to come first, in queues with ageing; preemptive",
               "ALISE, Zhao and Wang 2024, arXiv:2410.23537; partly our definition; needs 'predictor'");

}  // namespace

}  // namespace kvlab
