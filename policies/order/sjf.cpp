#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "policies/order/keyed_order.h"
#include "policies/order/order.h"

namespace kvlab {

namespace {

// Lengths fall by `rate` tokens per second since arrival; length + rate arrival gives the same order at any time.
class Aging {
 public:
  explicit Aging(Params& p)
      : tokens_per_s_(p.optional<double>("aging_per_s", 0, 0, 1e6,
                                         "tokens by which a request counts as shorter for every second since its arrival, so that none "
                                         "waits forever; 0: it does not")) {}

  [[nodiscard]] bool is_on() const { return tokens_per_s_ > 0; }
  // In thousandths of a token; without aging the length.
  [[nodiscard]] std::int64_t key(std::int64_t length, Time arrival) const {
    if (!is_on()) return length;
    constexpr double kParts = 1000;
    return std::llround((static_cast<double>(length) + tokens_per_s_ * to_s(arrival - kStart)) * kParts);
  }

 private:
  double tokens_per_s_;
};

// With a window, only groups of that many arrivals are sorted: TetriInfer's PrefillSchedBatch (Hu et al. 2024, arXiv:2401.11181, section
// 3.3.1). Taking a group's first request closes it.
class Sjf final : public KeyedOrder {
 public:
  explicit Sjf(Params& p)
      : counts_prompt_(p.flag("counts_prompt", false, "whether the prompt is part of the length")),
        counts_output_(p.flag("counts_output", true, "whether the predicted output is part of the length")),
        window_(p.optional<std::int32_t>("window", 0, 0, 1 << 20,
                                         "so many requests, in order of arrival, are sorted and served before the next; 0: all that wait")),
        aging_(p) {
    if (window_ > 0 && aging_.is_on())
      p.fail_at("aging_per_s", "'window' and 'aging_per_s' both keep long requests from waiting forever: give one of them");
    if (!counts_prompt_ && !counts_output_)
      p.fail_at("counts_output", "'sjf' needs a length to sort by: leave out 'counts_output: false', or add 'counts_prompt: true'");
  }

  [[nodiscard]] bool uses_predictor() const override { return counts_output_; }
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

  void insert(RequestId r, Entry entry) override {
    if (entry == Entry::kArrival) slot(jobs_, r) = {next_group(), aging_.key(length_of(r), info(r).arrival)};
    KeyedOrder::insert(r, entry);
  }

  void on_admit(RequestId r) override {
    if (jobs_[index(r)].group == group_) close_group();
  }

 private:
  static constexpr std::int64_t kLengths = std::int64_t{1} << 32;  // more than the longest job
  struct Job {
    std::int64_t group = 0, length = 0;  // group is 0 with aging
  };

  [[nodiscard]] std::int64_t rank(RequestId r) const override { return jobs_[index(r)].group * kLengths + jobs_[index(r)].length; }

  [[nodiscard]] std::int64_t length_of(RequestId r) const {
    const std::int64_t output = counts_output_ ? predictor().output_tokens(info(r)) : 0;
    return output + (counts_prompt_ ? info(r).prompt_tokens : 0);
  }

  [[nodiscard]] std::int64_t next_group() {
    if (window_ == 0) return 0;
    if (in_group_ == window_) close_group();
    ++in_group_;
    return group_;
  }
  void close_group() {
    if (window_ == 0 || in_group_ == 0) return;
    ++group_;
    in_group_ = 0;
  }

  bool counts_prompt_, counts_output_;
  std::int32_t window_;
  Aging aging_;
  std::int64_t group_ = 0;
  std::int32_t in_group_ = 0;
  std::vector<Job> jobs_;  // by slot
};

KVLAB_REGISTER(Order, Sjf, "sjf", "shortest job first, by predicted output or prompt; running requests stay",
               "textbook; windows: TetriInfer, Hu et al. 2024, arXiv:2401.11181");

// Lengths are predicted once, at arrival.
class PredictedOrder : public KeyedOrder {
 public:
  [[nodiscard]] bool uses_predictor() const final { return true; }
  void insert(RequestId r, Entry entry) final {
    if (entry == Entry::kArrival) slot(predicted_, r) = predictor().output_tokens(info(r));
    KeyedOrder::insert(r, entry);
  }

 protected:
  [[nodiscard]] std::int64_t predicted(RequestId r) const { return predicted_[index(r)]; }
  // A reached estimate is doubled (ALISE, 2024, arXiv:2410.23537).
  [[nodiscard]] std::int64_t remaining(RequestId r) const {
    std::int64_t total = predicted(r);
    while (total <= info(r).output_tokens) total *= 2;
    return total - info(r).output_tokens;
  }

 private:
  std::vector<std::int32_t> predicted_;  // by slot
};

// A waiting request overtakes the running one with the most tokens to come.
class Srpt final : public PredictedOrder {
 public:
  explicit Srpt(Params& p)
      : preemptive_(p.flag("preemptive", true, "whether a shorter waiting request preempts a running one")),
        mode_(p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}}, Preemption::kRecompute,
                       "what becomes of the KV of a request that is overtaken")),
        aging_(p) {}
  [[nodiscard]] std::optional<Preemption> overtaking() const override { return preemptive_ ? std::optional(mode_) : std::nullopt; }
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const override { return rank(waiting) < rank(running); }

  // Ranks only fall until a request reaches its estimate.
  [[nodiscard]] Horizon stable_for() const override {
    std::int64_t plans = std::numeric_limits<std::int64_t>::max();
    for (const RequestId r : view().running()) plans = std::min(plans, remaining(r) - 1);
    return {plans, false};
  }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return aging_.key(remaining(r), info(r).arrival); }

  bool preemptive_;
  Preemption mode_;
  Aging aging_;
};

KVLAB_REGISTER(Order, Srpt, "srpt", "fewest predicted output tokens still to come first, preemptive",
               "textbook (Schrage 1968); the oracle in FastServe, Wu et al. 2023, arXiv:2305.05920; needs 'predictor'");

// SGLang's `lof` (python/sglang/srt/managers/schedule_policy.py, v0.5.9), by prediction instead of the stated limit.
class LongestOutput final : public PredictedOrder {
 public:
  explicit LongestOutput(Params& /*p*/) {}
  [[nodiscard]] RequestId victim(RequestId usual) const override { return usual; }
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return -predicted(r); }
};

KVLAB_REGISTER(Order, LongestOutput, "longest_output", "longest predicted output first; running requests stay",
               "SGLang 'lof', Zheng et al. 2023, arXiv:2312.07104");

}  // namespace

}  // namespace kvlab
