#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvlab {

// Choice among job types of unknown mean length (Merlis et al. 2023, "On Preemption and Learning in Stochastic Scheduling", ICML). All
// rules aim at the type of the smallest mean first. Lengths are in any unit of service; a host counts output tokens.
//
// Bounds on a type's mean, our form for exponential lengths: with service S given and N jobs ended, S / (N +- w), where
// w = scale sqrt(2 max(N, 1) log T) and T is the number of jobs seen. The upper one is infinite while N <= w.
class JobTypes {
 public:
  enum class Rule : std::uint8_t {
    kEtc,  // explore, then commit: types in turn until one type's upper bound is below the lower bounds of all others
    kUcb,  // the type with the lowest lower bound
  };
  // quantum 0: jobs run to their end, and only jobs that have ended count. Above: after so much service in one turn another type's job may
  // take the place, and the service of unfinished jobs counts.
  JobTypes(Rule rule, double scale, std::int64_t quantum) : rule_(rule), scale_(scale), quantum_(quantum) {}

  [[nodiscard]] bool is_preemptive() const { return quantum_ > 0; }
  [[nodiscard]] std::int64_t quantum() const { return quantum_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(types_.size()); }
  // Returns its number, from 0.
  std::uint32_t add_type() {
    types_.emplace_back();
    return size() - 1;
  }
  // A job of the type arrives, waits (again), is taken out of the queue to run for the first time or again, was served, or ends.
  void arrive() { ++jobs_; }
  void wait(std::uint32_t type) { ++types_[type].waiting; }
  void leave_queue(std::uint32_t type) { --types_[type].waiting; }
  void start(std::uint32_t type) { ++types_[type].started; }
  void serve(std::uint32_t type, std::int64_t amount) { types_[type].served += is_preemptive() ? amount : 0; }
  void end(std::uint32_t type, std::int64_t length) {
    ++types_[type].ended;
    types_[type].served += is_preemptive() ? 0 : length;
  }

  [[nodiscard]] double lower(std::uint32_t type) const {
    const Type& t = types_[type];
    return static_cast<double>(t.served) / (static_cast<double>(t.ended) + width(t));
  }
  [[nodiscard]] double upper(std::uint32_t type) const {
    const Type& t = types_[type];
    const double least = static_cast<double>(t.ended) - width(t);
    return least > 0 ? static_cast<double>(t.served) / least : std::numeric_limits<double>::infinity();
  }

  // Types with waiting jobs, the one whose turn it is first.
  void rank(std::vector<std::uint32_t>& order) const {
    order.clear();
    for (std::uint32_t t = 0; t < size(); ++t)
      if (types_[t].waiting > 0) order.push_back(t);
    const std::int64_t best = rule_ == Rule::kEtc ? committed(order) : kNone;
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return precedes(a, b, best); });
  }
  // A waiting job of type `waiting` takes the place of a running one that was served `in_turn` in this turn.
  [[nodiscard]] bool overtakes(std::uint32_t waiting, std::uint32_t running, std::int64_t in_turn) const {
    if (!is_preemptive() || waiting == running || in_turn < quantum_) return false;
    if (rule_ == Rule::kUcb) return lower(waiting) < lower(running);
    const std::vector<std::uint32_t> two{waiting, running};
    const std::int64_t best = committed(two);
    if (best != kNone) return best == waiting;
    return types_[waiting].served + quantum_ <= types_[running].served;
  }
  // Between two types, as if both had waiting jobs and no other type had.
  [[nodiscard]] bool precedes(std::uint32_t a, std::uint32_t b) const {
    const std::vector<std::uint32_t> two{a, b};
    return precedes(a, b, rule_ == Rule::kEtc ? committed(two) : kNone);
  }

 private:
  static constexpr std::int64_t kNone = -1;
  struct Type {
    std::int64_t waiting = 0, started = 0, ended = 0;
    std::int64_t served = 0;
  };
  [[nodiscard]] double width(const Type& t) const {
    const double jobs = std::max(2.0, static_cast<double>(jobs_));
    return scale_ * std::sqrt(2 * std::max(1.0, static_cast<double>(t.ended)) * std::log(jobs));
  }
  // The type of `all` that is known to be the shortest; kNone: not known yet. Of one type alone: that one.
  [[nodiscard]] std::int64_t committed(const std::vector<std::uint32_t>& all) const {
    for (const std::uint32_t type : all) {
      const double mine = upper(type);
      const auto is_longer = [&](std::uint32_t other) { return other == type || mine < lower(other); };
      if (std::all_of(all.begin(), all.end(), is_longer)) return type;
    }
    return kNone;
  }
  [[nodiscard]] bool precedes(std::uint32_t a, std::uint32_t b, std::int64_t best) const {
    if ((a == best) != (b == best)) return a == best;
    if (rule_ == Rule::kUcb && lower(a) != lower(b)) return lower(a) < lower(b);
    const Type &x = types_[a], &y = types_[b];
    if (is_preemptive() && x.served != y.served) return x.served < y.served;
    if (x.started != y.started) return x.started < y.started;
    return a < b;
  }

  Rule rule_;
  double scale_;
  std::int64_t quantum_;
  std::int64_t jobs_ = 0;
  std::vector<Type> types_;
};

}  // namespace kvlab
