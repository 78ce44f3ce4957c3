#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "policies/order/job_types.h"
#include "policies/order/order.h"

namespace kvlab {

namespace {

// Classes as job types (Merlis et al. 2023, ICML; job_types.h). The paper has one server and all jobs at the start; here rows take jobs at
// any time. Within a class: by arrival, preempted ones first.
class LearnedTypes : public Order {
 public:
  LearnedTypes(JobTypes types, Preemption mode) : types_(std::move(types)), mode_(mode) {}

  [[nodiscard]] std::vector<Fact> needs() const final { return {Fact::kClass}; }
  [[nodiscard]] std::uint32_t size() const final { return size_; }
  [[nodiscard]] RequestId at(std::uint32_t position) const final {
    if (!is_ranked_) types_.rank(ranked_);
    is_ranked_ = true;
    for (const std::uint32_t type : ranked_) {
      const std::deque<RequestId>& queue = queues_[type];
      if (position < queue.size()) return queue[position];
      position -= static_cast<std::uint32_t>(queue.size());
    }
    throw InternalError("the order has no request at that place");
  }
  void insert(RequestId r, Entry entry) final {
    if (entry == Entry::kArrival) {
      slot(jobs_, r) = {type_of(r), 0, false, false};
      types_.arrive();
    } else {
      stop(r);
    }
    std::deque<RequestId>& queue = queues_[type(r)];
    if (entry == Entry::kPreemptedToFront)
      queue.push_front(r);
    else
      queue.push_back(r);
    types_.enter_queue(type(r));
    ++size_;
    is_ranked_ = false;
  }
  void erase(RequestId r) final {
    std::deque<RequestId>& queue = queues_[type(r)];
    const auto at = std::find(queue.begin(), queue.end(), r);
    if (at == queue.end()) throw InternalError("request is not waiting");
    queue.erase(at);
    types_.leave_queue(type(r));
    --size_;
    is_ranked_ = false;
  }

  [[nodiscard]] bool precedes(RequestId a, RequestId b) const final {
    if (!types_.is_preemptive()) return info(a).arrival < info(b).arrival;
    const bool a_is_done = in_turn(a) >= types_.quantum(), b_is_done = in_turn(b) >= types_.quantum();
    if (a_is_done != b_is_done) return b_is_done;
    return type(a) != type(b) ? types_.precedes(type(a), type(b)) : info(a).number < info(b).number;
  }
  [[nodiscard]] RequestId victim(RequestId usual) const final { return types_.is_preemptive() ? Order::victim(usual) : usual; }
  [[nodiscard]] std::optional<Preemption> overtaking() const final { return types_.is_preemptive() ? std::optional(mode_) : std::nullopt; }
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const final {
    return types_.overtakes(type(waiting), type(running), in_turn(running));
  }

  void on_admit(RequestId r) final {
    Job& job = jobs_[index(r)];
    types_.run(job.type, !job.has_started);
    job.has_started = job.is_running = true;
    job.turn_began = info(r).output_tokens;
    is_ranked_ = false;
  }
  // Tokens in flight at preemption count, too.
  void on_tokens(RequestId r, std::int32_t count) final {
    if (!types_.is_preemptive()) return;
    types_.serve(type(r), count);
    is_ranked_ = false;
  }
  void on_leave(RequestId r) final {
    stop(r);
    if (info(r).output_tokens == 0) return;  // rejected
    types_.end(type(r), info(r).output_tokens);
    is_ranked_ = false;
  }
  [[nodiscard]] bool watches_steps() const final { return types_.is_preemptive(); }

  // Without preemption estimates change only at starts and ends.
  [[nodiscard]] Horizon stable_for() const final { return types_.is_preemptive() ? Horizon::none() : Horizon::whatever_is_cached(); }

 private:
  struct Job {
    std::uint32_t type = 0;
    std::int32_t turn_began = 0;
    bool has_started = false, is_running = false;
  };
  void stop(RequestId r) {
    Job& job = jobs_[index(r)];
    if (job.is_running) types_.stop(job.type);
    job.is_running = false;
  }
  [[nodiscard]] std::uint32_t type(RequestId r) const { return jobs_[index(r)].type; }
  [[nodiscard]] std::int64_t in_turn(RequestId r) const { return info(r).output_tokens - jobs_[index(r)].turn_began; }
  std::uint32_t type_of(RequestId r) {
    const auto [found, is_new] = numbers_.try_emplace(info(r).facts->request_class, types_.size());
    if (is_new) {
      types_.add_type();
      queues_.emplace_back();
    }
    return found->second;
  }

  JobTypes types_;
  Preemption mode_;
  std::map<ClassName, std::uint32_t> numbers_;
  std::vector<std::deque<RequestId>> queues_;  // by type
  std::vector<Job> jobs_;                      // by slot
  std::uint32_t size_ = 0;
  mutable std::vector<std::uint32_t> ranked_;  // valid while is_ranked_
  mutable bool is_ranked_ = false;
};

double read_scale(Params& p) {
  return p.optional<double>("confidence_scale", 1, 0, 100, "width of the confidence bounds on a class's mean length");
}
std::int64_t read_quantum(Params& p) {
  return p.optional<std::int64_t>("quantum_steps", 8, 1, 1 << 30, "output tokens after which another class may take the place");
}
Preemption read_mode(Params& p) {
  return p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}}, Preemption::kSwap,
                  "what becomes of the KV of a request that is overtaken");
}

template <JobTypes::Rule kRule>
class RunToEnd final : public LearnedTypes {
 public:
  explicit RunToEnd(Params& p) : LearnedTypes(JobTypes(kRule, read_scale(p), 0), Preemption::kRecompute) {}
};
template <JobTypes::Rule kRule>
class InTurns final : public LearnedTypes {
 public:
  explicit InTurns(Params& p) : InTurns(p, read_scale(p)) {}

 private:
  InTurns(Params& p, double scale) : InTurns(p, scale, read_quantum(p)) {}
  InTurns(Params& p, double scale, std::int64_t quantum) : LearnedTypes(JobTypes(kRule, scale, quantum), read_mode(p)) {}
};

using EtcU = RunToEnd<JobTypes::Rule::kEtc>;
using UcbU = RunToEnd<JobTypes::Rule::kUcb>;
using EtcRr = InTurns<JobTypes::Rule::kEtc>;
using UcbRr = InTurns<JobTypes::Rule::kUcb>;
constexpr const char* kLearnedTypes =
    "Merlis et al. 2023, On Preemption and Learning in Stochastic Scheduling, ICML; partly our definition";

KVLAB_REGISTER(Order, EtcU, "etc_u", "classes in turn until one is known to be the shortest, then that one; running requests stay",
               kLearnedTypes);
KVLAB_REGISTER(Order, UcbU, "ucb_u", "the class with the lowest bound on its mean output first; running requests stay", kLearnedTypes);
KVLAB_REGISTER(Order, EtcRr, "etc_rr", "as etc_u, in quanta: a long class is known before a request of it is paid for; preemptive",
               kLearnedTypes);
KVLAB_REGISTER(Order, UcbRr, "ucb_rr", "as ucb_u, in quanta; preemptive", kLearnedTypes);

}  // namespace

}  // namespace kvlab
