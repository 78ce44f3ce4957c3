// Memory of fast-forwarded decode steps, for policies that look ahead.
#include <algorithm>

#include "serving/kv_memory.h"

namespace kvlab {

std::int64_t KvMemory::look_ahead(std::span<const RequestId> of, std::int64_t most) {
  ahead_done_ = 0;
  ahead_of_.clear();
  runs_ahead_.resize(of.size());
  for (std::size_t place = 0; place < of.size() && most >= 2; ++place) {
    const Request& r = table_[of[place]];
    if (r.computed_tokens < r.most_computed || (r.left_hashed && !r.blocks.empty())) return 0;
    ahead_of_.push_back(seq_of(r, r.computed_tokens, 1));
    runs_ahead_[place].clear();
    most = std::min(most, footprint_->decode_run(ahead_of_.back(), most, runs_ahead_[place]));
  }
  return most < 2 ? 0 : most;
}

void KvMemory::charge_ahead(std::int64_t steps) {
  ahead_ = {};
  if (steps > 0) footprint_->charge_ahead(ahead_of_, runs_ahead_, steps, ahead_);
}

std::int64_t KvMemory::pages_ahead(std::span<const RequestId> of, std::int64_t steps) const {
  std::int64_t pages = 0;
  if (contiguous_) return pages;
  for (std::size_t place = 0; place < of.size(); ++place) {
    std::int64_t most = table_[of[place]].pages;
    const std::int64_t held = most;
    for (std::int64_t i = 0; i < steps; ++i) most = std::max(most, runs_ahead_[place][static_cast<std::size_t>(i)].peak_pages);
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

void KvMemory::repeat_pages(Request& r, std::size_t place, std::int64_t i) {
  if (contiguous_) return;
  const FootprintStep& step = runs_ahead_[place][static_cast<std::size_t>(ahead_done_ + i)];
  const std::int64_t pages = step.peak_pages - r.pages;
  if (pages <= 0) return;
  const std::int64_t before = allocated(r);
  pool_->take_pages(pages);
  r.pages += pages;
  allocated_tokens_ += allocated(r) - before;
}

void KvMemory::repeat_sizes(Request& r, std::size_t place, std::int64_t i) {
  const FootprintStep& step = runs_ahead_[place][static_cast<std::size_t>(ahead_done_ + i)];
  r.kept_pages = step.kept_pages;
  if (!r.left_hashed) {
    add_live(1);
    return;
  }
  add_live(step.kept_tokens - r.kept_tokens);
  r.kept_tokens = step.kept_tokens;
  r.row_tokens = step.held_tokens;
  r.pattern = step.pattern;
}

}  // namespace kvlab
