#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "app/compare/compare.h"
#include "base/quantile.h"

namespace kvlab {

namespace {

struct Gap {
  double seconds = 0;
  std::int64_t batch = 0;
};

// Finishes after the last first token.
struct Tail {
  std::vector<double> times;  // [gaps + 1]
  std::vector<Gap> gaps;
};

Tail tail_of(const std::vector<ServedRequest>& requests) {
  Tail tail;
  double begin = 0;
  for (const ServedRequest& r : requests) begin = std::max(begin, r.first_token_s);
  tail.times.push_back(begin);
  for (const ServedRequest& r : requests) {
    if (r.last_token_s > begin) tail.times.push_back(r.last_token_s);
  }
  std::sort(tail.times.begin(), tail.times.end());
  tail.times.erase(std::unique(tail.times.begin(), tail.times.end()), tail.times.end());
  for (std::size_t i = 0; i + 1 < tail.times.size(); ++i) {
    const auto running =
        std::count_if(requests.begin(), requests.end(), [&](const ServedRequest& r) { return r.last_token_s > tail.times[i]; });
    tail.gaps.push_back({tail.times[i + 1] - tail.times[i], running});
  }
  return tail;
}

// Two finishes and the steps between them, valid unless a request was preempted. They share their first-token step, or one is the last
// first token.
struct Pair {
  double begin_s = 0, end_s = 0, steps = 0;
};

std::vector<Pair> pairs_of(const std::vector<ServedRequest>& requests, const Tail& tail) {
  std::map<double, std::vector<const ServedRequest*>> by_first;
  for (const ServedRequest& r : requests) {
    if (r.last_token_s > tail.times[0]) by_first[r.first_token_s].push_back(&r);
  }
  std::vector<Pair> found;
  const auto add = [&](double begin, double end, std::int64_t steps) {
    if (steps >= 1 && end > begin) found.push_back({begin, end, static_cast<double>(steps)});
  };
  for (auto& [first, group] : by_first) {
    std::sort(group.begin(), group.end(), [](const auto* a, const auto* b) { return a->last_token_s < b->last_token_s; });
    if (first == tail.times[0]) add(first, group[0]->last_token_s, group[0]->output_tokens - 1);
    for (std::size_t i = 0; i + 1 < group.size(); ++i) {
      add(group[i]->last_token_s, group[i + 1]->last_token_s, group[i + 1]->output_tokens - group[i]->output_tokens);
    }
  }
  return found;
}

// Powers of kStep around the pairs' median, from an eighth (for a step of one request) to double.
constexpr double kStep = 1.005;
constexpr int kOctave = 139;  // in candidates
constexpr int kMiddle = 3 * kOctave, kCandidates = kMiddle + kOctave + 1;
// Between neighbouring gaps: 22 %, or half shorter, at lower cost, if the padded batch falls.
constexpr int kReach = 40, kFarReach = kOctave;
constexpr double kSoft = 0.3;
double candidate(double middle_s, int i) { return middle_s * std::pow(kStep, i - kMiddle); }

// The optimum may be outside the range.
bool is_at_end(double step_s, double middle_s) {
  return step_s <= candidate(middle_s, 0) * kStep || step_s >= candidate(middle_s, kCandidates - 1) / kStep;
}

// Longer gaps are useless: 1 % of the duration is an eighth of a step.
constexpr double kShortSteps = 12.5;

// Squared distance to a whole number of steps.
double misfit(const Gap& gap, double step_s) {
  const double ratio = gap.seconds / step_s;
  if (ratio > kShortSteps) return 0;
  const double off = ratio - std::max(1.0, std::round(ratio));
  return off * off;
}

// In squared steps.
struct Stiffness {
  double rough = 10;   // per squared log difference of neighbouring gaps
  double pull = 0.05;  // per squared octave from the pairs' median
};

// The later gap's batch is smaller, so a longer step is implausible.
double roughness(int larger_batch, int smaller_batch, double rough) {
  constexpr double kRise = 3000;
  const double ratio = (smaller_batch - larger_batch) * std::log(kStep);
  return (ratio > 0 ? kRise : rough) * ratio * ratio;
}

// Minimizes misfit + roughness + pull by dynamic programming.
std::vector<double> fit_durations(const std::vector<Gap>& gaps, double middle_s, const Stiffness& stiffness) {
  std::vector<double> cost(kCandidates, 0), next(kCandidates);
  std::vector<std::array<std::int16_t, kCandidates>> from(gaps.size());
  for (std::size_t g = 0; g < gaps.size(); ++g) {
    const bool is_padded_alike = g > 0 && padded_batch(gaps[g].batch) == padded_batch(gaps[g - 1].batch);
    const int fall = is_padded_alike ? kReach : kFarReach;
    const double rough = stiffness.rough * (is_padded_alike ? 1 : kSoft);
    for (int i = 0; i < kCandidates; ++i) {
      double least = std::numeric_limits<double>::infinity();
      for (int k = std::max(0, i - kReach); k <= std::min(kCandidates - 1, i + fall); ++k) {
        const double all = cost[static_cast<std::size_t>(k)] + (g == 0 ? 0 : roughness(k, i, rough));
        if (all >= least) continue;
        least = all;
        from[g][static_cast<std::size_t>(i)] = static_cast<std::int16_t>(k);
      }
      const double step_s = candidate(middle_s, i), octaves = std::log2(step_s / middle_s);
      next[static_cast<std::size_t>(i)] = least + misfit(gaps[g], step_s) + stiffness.pull * octaves * octaves;
    }
    cost.swap(next);
  }
  auto at = static_cast<int>(std::min_element(cost.begin(), cost.end()) - cost.begin());
  std::vector<double> durations(gaps.size());
  for (std::size_t g = gaps.size(); g-- > 0;) {
    durations[g] = candidate(middle_s, at);
    at = from[g][static_cast<std::size_t>(at)];
  }
  return durations;
}

// Mean over pairs, clamped to kOutlier because of preempted requests.
double pair_error(const std::vector<Pair>& pairs, const Tail& tail, const std::vector<double>& durations) {
  constexpr double kOutlier = 0.1;
  double error = 0;
  for (const Pair& pair : pairs) {
    double steps = 0;
    for (std::size_t i = 0; i < tail.gaps.size(); ++i) {
      if (tail.times[i] >= pair.begin_s && tail.times[i + 1] <= pair.end_s) steps += tail.gaps[i].seconds / durations[i];
    }
    error += std::min(std::abs(steps / pair.steps - 1), kOutlier);
  }
  return error / static_cast<double>(pairs.size());
}

double middle_of(const std::vector<Pair>& pairs) {
  std::vector<double> steps;
  for (const Pair& p : pairs) steps.push_back((p.end_s - p.begin_s) / p.steps);
  return upper_median(steps);
}

// By the pairs' step counts.
std::vector<double> best_durations(const std::vector<Pair>& pairs, const Tail& tail, double middle_s) {
  std::vector<double> best;
  double least = std::numeric_limits<double>::infinity();
  for (const double rough : {1.0, 3.0, 10.0, 30.0}) {
    for (const double pull : {0.0, 0.002, 0.01, 0.05}) {
      std::vector<double> durations = fit_durations(tail.gaps, middle_s, {rough, pull});
      const double error = pair_error(pairs, tail, durations);
      if (error >= least) continue;
      least = error;
      best = std::move(durations);
    }
  }
  return best;
}

}  // namespace

std::int64_t padded_batch(std::int64_t batch) {
  if (batch <= 2) return batch;
  if (batch <= 4) return 4;
  if (batch <= 256) return (batch + 7) / 8 * 8;
  return batch <= 512 ? (batch + 15) / 16 * 16 : batch;
}

std::vector<BatchTime> decode_step_times(const std::vector<ServedRequest>& requests) {
  const Tail tail = tail_of(requests);
  const std::vector<Pair> pairs = pairs_of(requests, tail);
  if (pairs.empty()) return {};
  const double middle_s = middle_of(pairs);
  const std::vector<double> durations = best_durations(pairs, tail, middle_s);
  constexpr double kSure = 0.2;
  std::map<std::int64_t, std::pair<double, double>> sums;  // padded batch -> steps, seconds
  for (std::size_t i = 0; i < tail.gaps.size(); ++i) {
    const double ratio = tail.gaps[i].seconds / durations[i], whole = std::round(ratio);
    if (whole < 1 || ratio > kShortSteps || std::abs(ratio - whole) > kSure || is_at_end(durations[i], middle_s)) continue;
    auto& [steps, seconds] = sums[padded_batch(tail.gaps[i].batch)];
    steps += whole;
    seconds += tail.gaps[i].seconds;
  }
  std::vector<BatchTime> times;
  for (const auto& [batch, sum] : sums) times.push_back({batch, sum.second / sum.first * 1e3, static_cast<std::int64_t>(sum.first)});
  return times;
}

}  // namespace kvlab
