#include "policies/kv/selector/selector.h"

namespace kvlab {

Traits Selector::provides() const {
  Traits traits;
  traits.set(Trait::kSelects, !selects_all());
  return traits;
}

std::vector<Conflict> Selector::conflicts() const {
  if (equal_heads() == EqualHeads::kNotNeeded) return {};
  return {{{Trait::kActs, Trait::kSplitsHeads, Trait::kShrinks},
           {},
           "selector '{selector}' takes all KV heads of a layer together, but {splitter} lets them keep different numbers of tokens"}};
}

}  // namespace kvlab
