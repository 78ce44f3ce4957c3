#include "policies/kv/format/probes.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace kvlab {

namespace {

constexpr std::int32_t kRun = 8;

// Whether one of the random runs covers `at`, counted from the start of the prompt or of decode.
bool in_random_run(const Draw& key, std::int32_t at, std::int32_t run, double share) {
  const std::int32_t stretch = std::max(run, static_cast<std::int32_t>(std::lround(run / share)));
  Draw draw = key;
  draw.step = static_cast<std::uint64_t>(at / stretch);
  const auto begin = static_cast<std::int32_t>(draw.below(static_cast<std::uint64_t>(stretch - run + 1)));
  return at % stretch >= begin && at % stretch < begin + run;
}

}  // namespace

std::vector<Probes::Range> Probes::ranges(const SeqStep& seq, std::int32_t begin, std::int32_t end) const {
  const auto newest = [this](std::int32_t n) { return static_cast<std::int32_t>(std::ceil(share * n)); };
  std::vector<Range> found;
  for (std::int32_t p = begin; p < end; ++p) {
    const bool in_prompt = p < seq.prompt_tokens;
    const std::int32_t at = in_prompt ? p : p - seq.prompt_tokens, run = in_prompt ? kRun : 1;
    const bool recent =
        in_prompt ? p >= seq.prompt_tokens - newest(seq.prompt_tokens) : at % block_tokens >= block_tokens - newest(block_tokens);
    const Draw key{0, Purpose::kPolicy, 0, 0, in_prompt ? 0U : 1U};
    if (!recent && !in_random_run(key, at, run, share)) continue;
    if (!found.empty() && found.back().end == p) {
      ++found.back().end;
    } else {
      found.push_back({p, p + 1});
    }
  }
  return found;
}

}  // namespace kvlab
