#include "app/step_times.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace kvlab {

namespace {

// A stretch of time with a known number of steps, over which the mean batch was `batch`.
struct Stretch {
  double batch = 0;
  double step_s = 0;
  double steps = 0;  // its weight in a fit
};

struct Gap {
  double seconds = 0;
  std::int64_t batch = 0;
};

struct Line {
  double base_s = 0, per_row_s = 0;
  [[nodiscard]] double at(double batch) const { return base_s + per_row_s * batch; }
};

// The finishes after the last first token: times, and the gaps between them with the requests running in each.
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

// Step durations between the finishes of two requests that had their first token in one step, if neither was preempted.
std::vector<double> steps_of_pairs(const std::vector<ServedRequest>& requests, const Tail& tail) {
  std::map<double, std::vector<const ServedRequest*>> by_first;
  for (const ServedRequest& r : requests) {
    if (r.last_token_s > tail.times[0]) by_first[r.first_token_s].push_back(&r);
  }
  std::vector<double> found;
  for (auto& [first, group] : by_first) {
    std::sort(group.begin(), group.end(), [](const auto* a, const auto* b) { return a->last_token_s < b->last_token_s; });
    for (std::size_t i = 0; i + 1 < group.size(); ++i) {
      const auto steps = static_cast<double>(group[i + 1]->output_tokens - group[i]->output_tokens);
      const double seconds = group[i + 1]->last_token_s - group[i]->last_token_s;
      if (steps >= 1 && seconds > 0) found.push_back(seconds / steps);
    }
  }
  return found;
}

double total_deviation(const std::vector<Stretch>& stretches, const Line& line) {
  double sum = 0;
  for (const Stretch& s : stretches) sum += std::min(s.steps, 20.0) * std::abs(s.step_s - line.at(s.batch));
  return sum;
}

// The line of least absolute deviation goes through two of the points; slopes below 0 make no sense, so flat ones count, too.
std::optional<Line> fit(const std::vector<Stretch>& stretches) {
  std::optional<Line> best;
  double least = 0;
  const auto consider = [&](const Line& line) {
    if (line.base_s <= 0 || line.per_row_s < 0) return;
    const double deviation = total_deviation(stretches, line);
    if (!best || deviation < least) {
      best = line;
      least = deviation;
    }
  };
  for (const Stretch& a : stretches) {
    consider({a.step_s, 0});
    for (const Stretch& b : stretches) {
      if (b.batch <= a.batch) continue;
      const double slope = (b.step_s - a.step_s) / (b.batch - a.batch);
      consider({a.step_s - slope * a.batch, slope});
    }
  }
  return best;
}

// Median of |step / line - 1|: how far one stretch is from the line.
double scatter(const std::vector<Stretch>& stretches, const Line& line) {
  std::vector<double> off;
  for (const Stretch& s : stretches) off.push_back(std::abs(s.step_s / line.at(s.batch) - 1));
  std::nth_element(off.begin(), off.begin() + static_cast<std::ptrdiff_t>(off.size() / 2), off.end());
  return off[off.size() / 2];
}

// Distance of the gap's length, in steps of the line, from a whole number of them.
double misfit(const Gap& gap, const Line& line) {
  const double ratio = gap.seconds / line.at(static_cast<double>(gap.batch));
  return std::abs(ratio - std::max(1.0, std::round(ratio)));
}

// The line under which short gaps are whole numbers of steps, near `step_s` at the mean batch; nothing when even the best
// is hardly better than chance (root mean square 0.29 for random gaps).
std::optional<Line> fit_comb(const Tail& tail, double step_s) {
  constexpr double kShortSteps = 12, kConvincing = 0.15;
  std::vector<Gap> gaps;
  double batch = 0;
  for (const Gap& gap : tail.gaps) {
    if (gap.seconds > kShortSteps * step_s) continue;
    gaps.push_back(gap);
    batch += static_cast<double>(gap.batch);
  }
  if (gaps.size() < 5) return std::nullopt;
  batch /= static_cast<double>(gaps.size());
  std::optional<Line> best;
  double least = kConvincing * kConvincing * static_cast<double>(gaps.size());
  for (int scale = -80; scale <= 80; ++scale) {  // +-20 % in quarters of a percent
    const double middle = step_s * (1 + scale * 0.0025);
    for (int share = 50; share <= 100; ++share) {  // of the duration that does not grow with the batch, percent
      const Line line{middle * share / 100, middle * (100 - share) / 100 / batch};
      double sum = 0;
      for (const Gap& gap : gaps) sum += misfit(gap, line) * misfit(gap, line);
      if (sum >= least) continue;
      least = sum;
      best = line;
    }
  }
  return best;
}

// Gaps whose number of steps the line can tell: n times its scatter stays below a quarter step, and so does what is left over.
std::vector<Stretch> count_steps(const Tail& tail, const Line& line, double line_scatter) {
  constexpr double kSure = 0.25;
  constexpr double kLeastScatter = 0.005;
  std::vector<Stretch> counted;
  for (const Gap& gap : tail.gaps) {
    const auto batch = static_cast<double>(gap.batch);
    const double ratio = gap.seconds / line.at(batch);
    const double steps = std::round(ratio);
    if (steps < 1 || steps * std::max(line_scatter, kLeastScatter) > kSure || std::abs(ratio - steps) > kSure) continue;
    counted.push_back({batch, gap.seconds / steps, steps});
  }
  return counted;
}

}  // namespace

std::int64_t padded_batch(std::int64_t batch) {
  if (batch <= 2) return batch;
  if (batch <= 4) return 4;
  if (batch <= 256) return (batch + 7) / 8 * 8;
  return batch <= 512 ? (batch + 15) / 16 * 16 : batch;
}

std::vector<StepTime> decode_step_times(const std::vector<ServedRequest>& requests) {
  const Tail tail = tail_of(requests);
  std::vector<double> of_pairs = steps_of_pairs(requests, tail);
  if (of_pairs.empty()) return {};
  std::nth_element(of_pairs.begin(), of_pairs.begin() + static_cast<std::ptrdiff_t>(of_pairs.size() / 2), of_pairs.end());
  std::optional<Line> line = fit_comb(tail, of_pairs[of_pairs.size() / 2]);
  if (!line) return {};
  constexpr double kCombScatter = 0.02;  // 12 steps can be told from 13 with it
  std::vector<Stretch> known = count_steps(tail, *line, kCombScatter);
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds && !known.empty(); ++round) {
    line = fit(known);
    if (line) known = count_steps(tail, *line, scatter(known, *line));
  }
  std::map<std::int64_t, std::pair<double, double>> sums;  // padded batch -> steps, seconds
  for (const Stretch& s : known) {
    auto& [steps, seconds] = sums[padded_batch(static_cast<std::int64_t>(s.batch))];
    steps += s.steps;
    seconds += s.steps * s.step_s;
  }
  std::vector<StepTime> times;
  for (const auto& [batch, sum] : sums) times.push_back({batch, sum.second / sum.first * 1e3, static_cast<std::int64_t>(sum.first)});
  return times;
}

}  // namespace kvlab
