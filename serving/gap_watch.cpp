#include "serving/gap_watch.h"

#include <algorithm>

#include "serving/metrics.h"

namespace kvlab {

namespace {

GapState state_of(std::int64_t spare) { return spare < 0 ? GapState::kMissed : spare == 0 ? GapState::kLastChance : GapState::kWithin; }

// Terms of first, first + step, ... above the limit.
std::int64_t terms_above(std::int64_t limit, std::int64_t first, std::int64_t step, std::int64_t terms) {
  if (step == 0) return first > limit ? terms : 0;
  if (step > 0) return first > limit ? terms : std::max<std::int64_t>(0, terms - 1 - (limit - first) / step);
  return first > limit ? std::min(terms, 1 + (first - limit - 1) / -step) : 0;
}

}  // namespace

std::int64_t StretchGaps::longer_than(Picoseconds limit) const {
  const std::int64_t before = std::count_if(single.begin(), single.end(), [&](Picoseconds gap) { return gap > limit; });
  return before + (terms > 0 ? terms_above(limit.count(), first.count(), step.count(), terms) : 0);
}

void GapWatch::begin(RequestId id, Request& r, const SloTarget& target) {
  constexpr Span kLongest = to_span(Picoseconds::max());  // no run is longer
  const bool has_target = target.is_set && target.tbt < kLongest;
  if (!has_target && !is_on()) return;
  if (watched_.size() <= index(id)) watched_.resize(index(id) + 1);
  watched_[index(id)] = {};
  if (!has_target) return;
  watched_[index(id)] = {to_ps(target.tbt), target.late_gaps_allowed(r.output_limit - 1)};
  r.gaps = state_of(watched_[index(id)].spare);
}

void GapWatch::add(RequestId id, Request& r, Picoseconds first, const StretchGaps& others) {
  if (index(id) >= watched_.size()) return;  // arrived before the first target
  Watched& watched = watched_[index(id)];
  if (watched.limit == Picoseconds::max()) return;
  const std::int64_t late = (first > watched.limit ? 1 : 0) + others.longer_than(watched.limit);
  if (late > 0) add_late(watched, r, late);
}

void GapWatch::add_late(Watched& watched, Request& r, std::int64_t count) {
  watched.spare -= count;
  r.gaps = state_of(watched.spare);
}

}  // namespace kvlab
