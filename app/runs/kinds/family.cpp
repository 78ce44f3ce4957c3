#include "app/runs/kinds/family.h"

namespace kvlab {

std::string family_of(const Recipe& r) {
  if (r.selector == "top_k_oracle" || r.scorer == "oracle" || r.scorer == "random" || r.keeps_everything()) return "reference";
  if (r.prunes()) return "prompt pruning";
  if (r.selector != "all") return "selection";
  if (r.scorer.empty() && r.format == "native" && r.selects_in_prompts()) return "prefill selection";
  if (r.scorer.empty()) return r.format != "native" ? "format" : "merging";
  if (r.format != "native") return "eviction and format";
  if (r.disposal != "drop") return "merging";
  if (r.scorer == "recency") return "position";
  const Needs needs = r.make_scorer()->needs();
  if (!needs.pass.empty() || needs.pre_rope_queries) return "expected attention";
  return needs.step_queries || needs.window_queries > 0 ? "attention" : "keys and values";
}

}  // namespace kvlab
