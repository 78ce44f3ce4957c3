#include "policies/kv/format/probes.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace kvlab {

namespace {

constexpr std::int32_t kRun = 8;

// The range counts from the part's start.
struct Part {
  std::int32_t first = 0, begin = 0, end = 0;
};

// One run at a random place per stretch.
void add_random_runs(const Part& part, std::uint64_t key, std::int32_t run, double share, std::vector<Probes::Range>& found) {
  const std::int32_t stretch = std::max(run, static_cast<std::int32_t>(std::lround(run / share)));
  for (std::int32_t i = part.begin / stretch; i * stretch < part.end; ++i) {
    const Draw draw{0, Purpose::kPolicy, 0, static_cast<std::uint64_t>(i), key};
    const std::int32_t at = i * stretch + static_cast<std::int32_t>(draw.below(static_cast<std::uint64_t>(stretch - run + 1)));
    found.push_back({part.first + std::max(part.begin, at), part.first + std::min(part.end, at + run)});
  }
}

void add_newest(const Part& part, std::int32_t block, double share, std::vector<Probes::Range>& found) {
  const auto newest = static_cast<std::int32_t>(std::ceil(share * block));
  for (std::int32_t i = part.begin / block; i * block < part.end; ++i) {
    const std::int32_t end = (i + 1) * block;
    found.push_back({part.first + std::max(part.begin, end - newest), part.first + std::min(part.end, end)});
  }
}

std::vector<Probes::Range> joined(std::vector<Probes::Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Probes::Range& a, const Probes::Range& b) { return a.begin < b.begin; });
  std::vector<Probes::Range> all;
  for (const Probes::Range& r : ranges) {
    if (r.begin >= r.end) continue;
    if (!all.empty() && r.begin <= all.back().end)
      all.back().end = std::max(all.back().end, r.end);
    else
      all.push_back(r);
  }
  return all;
}

}  // namespace

std::vector<Probes::Range> Probes::ranges(const SeqStep& seq, std::int32_t begin, std::int32_t end) const {
  std::vector<Range> found;
  const std::int32_t n = seq.prompt_tokens;
  const Part prompt{0, begin, std::min(end, n)}, decoded{n, std::max(0, begin - n), end - n};
  if (prompt.begin < prompt.end) {
    add_random_runs(prompt, 0, kRun, share, found);
    add_newest(prompt, n, share, found);
  }
  if (decoded.begin < decoded.end) {
    add_random_runs(decoded, 1, 1, share, found);
    add_newest(decoded, block_tokens, share, found);
  }
  return joined(std::move(found));
}

}  // namespace kvlab
