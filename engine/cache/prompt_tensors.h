#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/record.h"
#include "policies/kv/part.h"

namespace kvlab {

// The tensors of one forward pass over a whole prompt, kept so that many policies can start from them.
struct PromptTensors {
  std::vector<std::int32_t> ids;
  std::vector<LayerTensors> layers;                                // k, v; q, pre_q, pre_k and hidden if needed
  std::map<std::string, std::shared_ptr<const ExtraPass>> passes;  // by name
  std::vector<float> last_hidden;                                  // [hidden_dim] of the prompt's last token, after the last norm
  [[nodiscard]] std::int32_t tokens() const { return static_cast<std::int32_t>(ids.size()); }
};

// Runs the prompt in one piece over the full cache, and then the extra passes. `needs`: all that any of the policies observes. Errors as
// Transformer::forward.
PromptTensors run_prompt(const Transformer& model, std::span<const std::int32_t> ids, const Needs& needs,
                         std::span<const std::string> passes, const RecordOptions& options = {});

}  // namespace kvlab
