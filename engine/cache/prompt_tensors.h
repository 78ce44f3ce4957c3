#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/record.h"
#include "policies/kv/needs.h"

namespace kvlab {

// A pass from which many policies start.
struct PromptTensors {
  std::vector<std::int32_t> ids;
  std::vector<LayerTensors> layers;  // k, v; q, pre_q, pre_k and hidden if needed
  std::map<std::string, std::shared_ptr<const ExtraPass>> passes;
  std::vector<float> last_hidden;  // [hidden_dim], last token, after the last norm
  [[nodiscard]] std::int32_t tokens() const { return static_cast<std::int32_t>(ids.size()); }
};

// Full cache, then the extra passes. `needs`: of all policies. Errors as Transformer::forward.
PromptTensors run_prompt(const Transformer& model, std::span<const std::int32_t> ids, const Needs& needs,
                         std::span<const std::string> passes, const RecordOptions& options = {});

}  // namespace kvlab
