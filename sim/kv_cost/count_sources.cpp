#include "sim/kv_cost/count_sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace kvlab {

void RecordedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  const std::int32_t turn = turns_[{std::string(purpose), layer}]++;
  entries_.push_back({std::string(purpose), layer, step_, {counts.begin(), counts.end()}, turn});
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
    std::vector<Turn>& turns = recorded_[{e.purpose, e.layer}];
    const auto turn = static_cast<std::size_t>(e.turn);
    if (turn > turns.size())
      throw InputError(
          fmt::format("drawn counts: '{}' in layer {} was recorded at turn {} before turn {}", e.purpose, e.layer, turn, turns.size()));
    if (turn == turns.size()) turns.emplace_back();
    if (const Counts& first = turns.front().all; !first.empty() && first.front().size() != e.counts.size())
      throw InputError(fmt::format("drawn counts: '{}' in layer {} was recorded with {} and with {} counts", e.purpose, e.layer,
                                   first.front().size(), e.counts.size()));
    turns[turn].all.push_back(e.counts);
    turns[turn].at_step[e.step].push_back(e.counts);
  }
}

void DrawnCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  const Place place{std::string(purpose), layer};
  const auto at = recorded_.find(place);
  if (at == recorded_.end()) throw InputError(fmt::format("drawn counts: nothing was recorded for '{}' in layer {}", purpose, layer));
  const std::vector<Turn>& turns = at->second;
  const std::size_t width = turns.front().all.front().size();
  if (width == 0 || counts.size() % width != 0)
    throw InputError(fmt::format("drawn counts: '{}' in layer {} was recorded with {} counts per sequence, the run asks for {}", purpose,
                                 layer, width, counts.size()));
  // Decodes and prompts of a batch settle separately.
  const auto settled = static_cast<std::size_t>(turns_[place]++);
  const Turn& turn = turns[settled % turns.size()];
  const auto step = turn.at_step.find(step_);
  const bool is_recorded = step != turn.at_step.end();
  const Counts& from = is_recorded ? step->second : turn.all;
  for (std::size_t s = 0; s * width < counts.size(); ++s) {
    const std::uint64_t sequence = static_cast<std::uint64_t>(settled / turns.size()) << 32 | s;
    const Draw draw{seed_, Purpose::kPolicy, sequence, is_recorded ? 0 : static_cast<std::uint64_t>(step_) + 1};
    const std::vector<std::int32_t>& drawn = from[draw.below(from.size())];
    for (std::size_t i = 0; i < width; ++i) counts[s * width + i] = std::min(counts[s * width + i], drawn[i]);
  }
}

void ExpectedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  if (purpose != name_ || target_ <= 0) return;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const std::int32_t head = static_cast<std::int32_t>(r) % model_.kv_heads;
    counts[r] = std::min(counts[r], allocator_->expected_part(model_, layer, head, target_, full_, sequence_tokens_));
  }
}

}  // namespace kvlab
