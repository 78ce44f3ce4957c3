#include "policies/kv/policy/in_place.h"

#include <fmt/format.h>

namespace kvlab {

std::string why_compacts(const Recipe& r, const RecipeParts& parts) {
  const char* const ordered = "takes tokens in the order of their positions";
  const Disposal::Evicts evicts = parts.disposal->evicts();
  if (evicts == Disposal::Evicts::kOrdered) return fmt::format("disposal '{}' {}", r.disposal, ordered);
  if (evicts == Disposal::Evicts::kAsked) return fmt::format("disposal '{}' has 'in_place: false'", r.disposal);
  if (!parts.trigger->cuts_few()) return fmt::format("trigger '{}' drops many tokens at once", r.trigger);
  if (!parts.scorer->is_order_free({parts.allocator->is_uniform(), parts.trigger->unit()}))
    return fmt::format("scorer '{}' {}", r.scorer, ordered);
  if (parts.allocator->scope() == Allocator::Scope::kCascade)
    return fmt::format("allocator '{}' comes back to earlier layers", r.allocator);
  if (parts.format->encodes()) return fmt::format("format '{}' stores tokens in groups or in the order of their positions", r.format);
  if (!r.selects_all) return fmt::format("selector '{}' {}", r.selector, ordered);
  if (r.renumbers()) return "keys are renumbered in the order of their positions";
  if (r.prunes()) return fmt::format("{} '{}' {}", r.pruning_part(), r.rewrites() ? r.prompt_rewriter : r.prompt_pruner, ordered);
  if (r.peer_ties) return "ties are broken as a peer breaks them, by the tokens' order";
  return "";
}

std::string why_compacts(const Recipe& r) {
  const RecipeParts parts(r);
  if (parts.scorer == nullptr || !parts.trigger->in_decode() || !parts.disposal->shrinks()) return "";
  return why_compacts(r, parts);
}

}  // namespace kvlab
