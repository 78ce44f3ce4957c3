#pragma once

#include <string>

#include "policies/kv/recipe/recipe.h"

// In decode a row's last tokens overwrite few evicted ones (EvictRows) and break position order; needs Scorer::is_order_free,
// Trigger::cuts_few, Disposal::evicts. Other cuts compact (CompactRows).
namespace kvlab {

// Why decode cuts compact rows (sentence end); "": in place. `parts` has a scorer.
std::string why_compacts(const Recipe& recipe, const RecipeParts& parts);
// "" also without decode evictions.
std::string why_compacts(const Recipe& recipe);

}  // namespace kvlab
