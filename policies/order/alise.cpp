#include <algorithm>
#include <deque>
#include <vector>

#include "policies/order/swapping_order.h"

namespace kvlab {

namespace {

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
    std::int64_t tokens = 0, ended = 0;  // ended: tokens that pass their last layers
    for (const StepEntry& entry : entries) {
      tokens += entry.tokens;
      ended += entry.ends() ? entry.tokens : 0;
    }
    const bool has_prompts = tokens > static_cast<std::int64_t>(entries.size());
    (has_prompts ? prompt_tokens_ : decode_steps_) += has_prompts ? ended : 1;
    (has_prompts ? prompt_time_ : decode_time_) += duration;
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
    double rate = prefill_tokens_per_s_;
    if (rate == 0 && prompt_time_ > Span{0}) rate = static_cast<double>(prompt_tokens_) / to_s(prompt_time_);
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
  std::int64_t prompt_tokens_ = 0, decode_steps_ = 0;
  Span prompt_time_{}, decode_time_{};
};

KVLAB_REGISTER(Order, Alise, "alise", "shortest predicted time to come first, in queues with ageing; preemptive",
               "ALISE, Zhao and Wang 2024, arXiv:2410.23537; partly our definition; needs 'predictor'");

}  // namespace

}  // namespace kvlab
