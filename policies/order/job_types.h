#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvlab {

// Shortest mean first (Merlis et al. 2023, "On Preemption and Learning in Stochastic Scheduling", ICML). Bounds (our form for exponential
// lengths): service S over N ended jobs gives S / (N +- w), w = scale sqrt(2 max(N, 1) log T), T jobs seen; the upper one is infinite while
// N <= w.
class JobTypes {
 public:
  enum class Rule : std::uint8_t {
    kEtc,  // explore, then commit: round-robin without types whose lower bound exceeds another's upper bound
    kUcb,  // lowest lower bound first
  };
  // quantum 0: jobs run to their end, only ended jobs count. Above: another type may take over after that service in one turn; unfinished
  // jobs count.
  JobTypes(Rule rule, double scale, std::int64_t quantum) : rule_(rule), scale_(scale), quantum_(quantum) {}

  [[nodiscard]] bool is_preemptive() const { return quantum_ > 0; }
  [[nodiscard]] std::int64_t quantum() const { return quantum_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(types_.size()); }
  std::uint32_t add_type() {
    types_.emplace_back();
    return size() - 1;
  }
  // enter_queue(): at first or again; run(): is_first for the first time; stop(): to wait or for good; end(): after `length` in total.
  void arrive() { change(jobs_, 1); }
  void enter_queue(std::uint32_t type) { change(types_[type].waiting, 1); }
  void leave_queue(std::uint32_t type) { change(types_[type].waiting, -1); }
  void run(std::uint32_t type, bool is_first) {
    change(types_[type].running, 1);
    types_[type].started += is_first ? 1 : 0;
  }
  void stop(std::uint32_t type) { change(types_[type].running, -1); }
  void serve(std::uint32_t type, std::int64_t amount) { change(types_[type].served, is_preemptive() ? amount : 0); }
  void end(std::uint32_t type, std::int64_t length) {
    change(types_[type].ended, 1);
    types_[type].served += is_preemptive() ? 0 : length;
  }

  [[nodiscard]] double lower(std::uint32_t type) const {
    const Type& t = types_[type];
    const double most = static_cast<double>(t.ended) + width(t);  // 0 only without a scale, before any has ended
    return most > 0 ? static_cast<double>(t.served) / most : 0;
  }
  [[nodiscard]] double upper(std::uint32_t type) const {
    const Type& t = types_[type];
    const double least = static_cast<double>(t.ended) - width(t);
    return least > 0 ? static_cast<double>(t.served) / least : std::numeric_limits<double>::infinity();
  }

  // Next turn first.
  void rank(std::vector<std::uint32_t>& order) const {
    order.clear();
    for (std::uint32_t t = 0; t < size(); ++t)
      if (types_[t].waiting > 0) order.push_back(t);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return precedes(a, b); });
  }
  [[nodiscard]] bool precedes(std::uint32_t a, std::uint32_t b) const {
    if (is_out(a) != is_out(b)) return is_out(b);
    if (rule_ == Rule::kUcb && lower(a) != lower(b)) return lower(a) < lower(b);
    const Type &x = types_[a], &y = types_[b];
    if (is_preemptive() && x.served != y.served) return x.served < y.served;
    if (x.started != y.started) return x.started < y.started;
    return a < b;
  }
  // The running job has had `in_turn` service in this turn.
  [[nodiscard]] bool overtakes(std::uint32_t waiting, std::uint32_t running, std::int64_t in_turn) const {
    if (!is_preemptive() || waiting == running || in_turn < quantum_) return false;
    if (rule_ == Rule::kUcb) return lower(waiting) < lower(running);
    if (is_out(waiting) != is_out(running)) return is_out(running);
    return types_[waiting].served + quantum_ <= types_[running].served;
  }

 private:
  struct Type {
    std::int64_t waiting = 0, running = 0, started = 0, ended = 0;
    std::int64_t served = 0;
    [[nodiscard]] bool is_present() const { return waiting + running > 0; }
  };
  void change(std::int64_t& number, std::int64_t by) {
    number += by;
    has_least_upper_ = false;
  }
  [[nodiscard]] double width(const Type& t) const {
    const double jobs = std::max(2.0, static_cast<double>(jobs_));
    return scale_ * std::sqrt(2 * std::max(1.0, static_cast<double>(t.ended)) * std::log(jobs));
  }
  [[nodiscard]] bool is_out(std::uint32_t type) const {
    if (rule_ != Rule::kEtc) return false;
    if (!has_least_upper_) {
      least_upper_ = std::numeric_limits<double>::infinity();
      for (std::uint32_t t = 0; t < size(); ++t)
        if (types_[t].is_present()) least_upper_ = std::min(least_upper_, upper(t));
      has_least_upper_ = true;
    }
    return lower(type) > least_upper_;
  }

  Rule rule_;
  double scale_;
  std::int64_t quantum_;
  std::int64_t jobs_ = 0;
  std::vector<Type> types_;
  mutable double least_upper_ = 0;
  mutable bool has_least_upper_ = false;
};

}  // namespace kvlab
