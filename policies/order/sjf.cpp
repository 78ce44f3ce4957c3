#include <vector>

#include "policies/order/aging.h"
#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
