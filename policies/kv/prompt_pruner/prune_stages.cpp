#include "policies/kv/prompt_pruner/prune_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/text.h"

namespace kvlab {

PruneStages::PruneStages(Params& p, const std::string& fallback) {
  constexpr double kMostTokens = 1 << 24;
  std::istringstream words(p.text("stages", fallback, "DEPTH=TOKENS: from this share of the depth on, this many tokens (up to 1: share)"));
  for (std::string word; words >> word;) {
    Stage stage{};
    const std::size_t equals = word.find('=');
    const bool good = equals != std::string::npos && parse_real(word.substr(0, equals), stage.depth) &&
                      parse_real(word.substr(equals + 1), stage.tokens) && stage.depth > 0 && stage.depth < 1 && stage.tokens > 0 &&
                      stage.tokens <= kMostTokens;
    if (!good)
      p.fail_at("stages", fmt::format("'{}' in 'stages': expected DEPTH=TOKENS, a depth between 0 and 1 and a positive number of tokens "
                                      "(up to 1: a share of the prompt), as in '0.5=1024' or '0.33=0.6 0.5=0.4'",
                                      word));
    stages_.push_back(stage);
  }
  if (stages_.empty() && !p.is_describing()) p.fail_at("stages", "'stages' is empty; without pruning write 'prompt_pruner: none'");
}

std::int32_t PruneStages::after(const ModelShape& model, std::int32_t layer, std::int32_t prompt_tokens) const {
  constexpr double kRounding = 1e-9;  // 2/3 of 9 layers are 6
  std::int32_t least = prompt_tokens;
  for (const Stage& stage : stages_) {
    const auto begin = std::max(1, static_cast<std::int32_t>(std::floor(stage.depth * model.num_layers + kRounding)));
    const double tokens = stage.tokens <= 1 ? std::floor(stage.tokens * prompt_tokens + kRounding) : std::floor(stage.tokens);
    if (begin == layer + 1) least = std::min<std::int32_t>(least, static_cast<std::int32_t>(std::max(1.0, tokens)));
  }
  return least;
}

}  // namespace kvlab
