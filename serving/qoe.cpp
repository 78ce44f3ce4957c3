#include "serving/qoe.h"

#include <algorithm>

namespace kvlab {

void QoeWatch::begin(RequestId id, const RequestRecord& r) {
  if (readers_.size() <= index(id)) readers_.resize(index(id) + 1);
  Reader& reader = readers_[index(id)] = {};
  const bool has_pace = has_fact(r.facts, Fact::kTpotSlo) && r.facts->tpot_slo > Span{0};
  const Span ttft = has_fact(r.facts, Fact::kTtftSlo) ? r.facts->ttft_slo : expected_->ttft;
  reader.due = (Int128{ns(r.arrival - kStart)} + ns(ttft)) * kPsPerNs;
  reader.per_token = Int128{ns(has_pace ? r.facts->tpot_slo : expected_->per_token)} * kPsPerNs;
}

void QoeWatch::add(RequestId id, Picoseconds at) {
  Reader& reader = readers_[index(id)];
  reader.lag = std::max(reader.lag, at.count() - reader.due);
  reader.lag_sum += reader.lag;
  reader.due += reader.per_token;
  ++reader.tokens;
}

void QoeWatch::add(RequestId id, Picoseconds at, const StretchGaps& gaps) {
  for (const Picoseconds gap : gaps.single) add(id, at += gap);
  if (gaps.step < Picoseconds{}) {
    for (std::int64_t k = 0; k < gaps.terms; ++k) add(id, at += gaps.first + k * gaps.step);
    return;
  }
  Reader& reader = readers_[index(id)];
  if (gaps.terms > 0) add_growing(reader, at.count() - reader.due + reader.per_token, gaps);
}

// Growing gaps. Token k (from 0) is delivered x_k = x + (k + 1) a + s k (k + 1) / 2 after its place on the line: x = `ahead` of the token
// before, a = first gap - per_token, s = step. x_k is convex and begins at or below the lag, so from some k on it is the lag.
void QoeWatch::add_growing(Reader& reader, Int128 ahead, const StretchGaps& gaps) {
  const Int128 a = gaps.first.count() - reader.per_token, s = gaps.step.count(), lag = reader.lag;
  const auto x = [&](Int128 k) { return ahead + (k + 1) * a + s * (k * (k + 1) / 2); };
  const auto sum_below = [&](Int128 k) { return k * ahead + a * (k * (k + 1) / 2) + s * ((k - 1) * k * (k + 1) / 6); };
  std::int64_t low = 0, high = gaps.terms;  // tokens from `high` on exceed the lag, those below `low` do not
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (x(middle) > lag)
      high = middle;
    else
      low = middle + 1;
  }
  reader.lag_sum += low * lag + sum_below(gaps.terms) - sum_below(low);
  if (low < gaps.terms) reader.lag = x(gaps.terms - 1);
  reader.due += reader.per_token * gaps.terms;
  reader.tokens += gaps.terms;
}

double QoeWatch::qoe(RequestId id) const {
  const Reader& reader = readers_[index(id)];
  const auto tokens = static_cast<double>(reader.tokens);
  const double whole = tokens * (tokens * static_cast<double>(reader.per_token) / 2 + static_cast<double>(reader.lag));
  return 1 - static_cast<double>(reader.lag_sum) / whole;
}

}  // namespace kvlab
