// Memory of fast-forwarded decode steps, for policies that look ahead.
#include <algorithm>

#include "serving/kv_memory.h"

namespace kvlab {

std::span<const FootprintStep> DecodeRun::extend(const Request& r, const SeqState& now, std::int64_t least, std::int64_t most,
                                                 Footprint& footprint) {
  const FootprintStep* const next = find(r);
  steps_.erase(steps_.begin(), next == nullptr ? steps_.end() : steps_.begin() + (next - steps_.data()));
  from_ = now;
  if (std::ssize(steps_) >= least) return steps_;
  SeqState last = now;
  if (!steps_.empty()) {
    last.seen_tokens += static_cast<std::int32_t>(steps_.size()) - 1;
    last = steps_.back().after(last);
  }
  footprint.decode_run(last, most - std::ssize(steps_), steps_);
  return steps_;
}

const FootprintStep* KvMemory::first_of_run(DecodeRun& run, const Request& r) {
  if (r.computed_tokens < std::max(r.prompt_tokens, r.most_computed)) return nullptr;
  constexpr std::int64_t kMost = 16;
  const std::int64_t left = r.prompt_tokens + r.output_limit - 1 - r.computed_tokens;
  run.extend(r, seq_of(r, r.computed_tokens, 1), 1, std::clamp<std::int64_t>(left, 1, kMost), *footprint_);
  return run.find(r);
}

std::int64_t KvMemory::look_ahead(std::span<const RequestId> of, std::int64_t most) {
  ahead_of_.clear(), runs_ahead_.clear();
  for (std::size_t place = 0; place < of.size() && most >= 2; ++place) {
    const Request& r = table_[of[place]];
    if (r.computed_tokens < r.most_computed || (r.left_hashed && !r.blocks.empty())) return 0;
    ahead_of_.push_back(seq_of(r, r.computed_tokens, 1));
    runs_ahead_.push_back(run_of(of[place]).extend(r, ahead_of_.back(), most, most, *footprint_));
    most = std::min(most, std::ssize(runs_ahead_.back()));
  }
  return most < 2 ? 0 : most;
}

void KvMemory::charge_ahead(std::int64_t steps) {
  ahead_.ops.clear();
  if (steps > 0) footprint_->charge_ahead(ahead_of_, runs_ahead_, steps, ahead_);
}

std::int64_t KvMemory::pages_ahead(std::span<const RequestId> of, std::int64_t steps) const {
  std::int64_t pages = 0;
  if (contiguous_) return pages;
  for (std::size_t place = 0; place < of.size(); ++place) {
    std::int64_t most = table_[of[place]].pages;
    const std::int64_t held = most;
    for (const FootprintStep& step : runs_ahead_[place].first(static_cast<std::size_t>(steps))) most = std::max(most, step.peak_pages);
    pages += most - held;
  }
  return pages;
}

void KvMemory::return_surplus(Request& r) {
  const std::int64_t surplus = r.pages - r.kept_pages;
  if (!r.left_hashed || surplus <= 0) return;
  const std::int64_t before = allocated(r);
  pool_->return_pages(surplus);
  r.pages -= surplus;
  allocated_tokens_ += allocated(r) - before;
}

void KvMemory::repeat_pages(RequestId id, std::int64_t i) {
  if (contiguous_) return;
  Request& r = table_[id];
  const std::int64_t pages = runs_[index(id)].step(r, i).peak_pages - r.pages;
  if (pages <= 0) return;
  const std::int64_t before = allocated(r);
  pool_->take_pages(pages);
  r.pages += pages;
  allocated_tokens_ += allocated(r) - before;
}

void KvMemory::repeat_sizes(RequestId id, std::int64_t i) {
  Request& r = table_[id];
  const FootprintStep& step = runs_[index(id)].step(r, i);
  add_live(r.left_hashed ? step.kept_tokens - r.kept_tokens : 1);
  take_sizes(r, step);
}

}  // namespace kvlab
