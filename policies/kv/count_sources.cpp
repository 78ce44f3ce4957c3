#include "policies/kv/count_sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace kvlab {

void RecordedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  entries_.push_back({std::string(purpose), layer, step_, {counts.begin(), counts.end()}});
}

void ScriptedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  const std::string asked = fmt::format("{} counts of '{}' in layer {}, step {}", counts.size(), purpose, layer, step_);
  if (used_up())
    throw InputError(fmt::format("scripted counts: the run asks for {}, but the {} recorded entries are used up", asked, next_));
  const RecordedCounts::Entry& e = entries_[next_];
  if (e.purpose != purpose || e.layer != layer || e.counts.size() != counts.size())
    throw InputError(fmt::format("scripted counts: the run asks for {}, but entry {} has {} counts of '{}' in layer {}, step {}", asked,
                                 next_, e.counts.size(), e.purpose, e.layer, e.step));
  std::copy(e.counts.begin(), e.counts.end(), counts.begin());
  ++next_;
}

DrawnCounts::DrawnCounts(std::span<const RecordedCounts::Entry> entries, std::uint64_t seed) : seed_(seed) {
  for (const RecordedCounts::Entry& e : entries) {
    auto& vectors = recorded_[{e.purpose, e.layer}];
    if (!vectors.empty() && vectors.front().size() != e.counts.size())
      throw InputError(fmt::format("drawn counts: '{}' in layer {} was recorded with {} and with {} counts", e.purpose, e.layer,
                                   vectors.front().size(), e.counts.size()));
    vectors.push_back(e.counts);
  }
}

void DrawnCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  const auto at = recorded_.find({std::string(purpose), layer});
  if (at == recorded_.end()) throw InputError(fmt::format("drawn counts: nothing was recorded for '{}' in layer {}", purpose, layer));
  const std::size_t width = at->second.front().size();
  if (width == 0 || counts.size() % width != 0)
    throw InputError(fmt::format("drawn counts: '{}' in layer {} was recorded with {} counts per sequence, the run asks for {}", purpose,
                                 layer, width, counts.size()));
  const auto call = static_cast<std::uint64_t>(calls_++);
  for (std::size_t s = 0; s * width < counts.size(); ++s) {
    const Draw draw{seed_, Purpose::kPolicy, call << 32 | s, static_cast<std::uint64_t>(step_), static_cast<std::uint64_t>(layer)};
    const std::vector<std::int32_t>& from = at->second[draw.below(at->second.size())];
    for (std::size_t i = 0; i < width; ++i) counts[s * width + i] = std::min(counts[s * width + i], from[i]);
  }
}

void ExpectedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  if (purpose != name_ || target_ <= 0) return;
  for (std::size_t r = 0; r < counts.size(); ++r)
    counts[r] =
        std::min(counts[r], allocator_->expected(model_, layer, static_cast<std::int32_t>(r) % model_.kv_heads, target_, counts[r]));
}

}  // namespace kvlab
