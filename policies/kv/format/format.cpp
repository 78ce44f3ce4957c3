#include "policies/kv/format/format.h"

namespace kvlab {

Traits Format::provides() const {
  Traits traits;
  traits.set(Trait::kEncodes, !is_native());
  return traits;
}

std::vector<Conflict> Format::conflicts() const {
  if (equal_heads() == EqualHeads::kNotNeeded) return {};
  return {{{Trait::kActs, Trait::kSplitsHeads, Trait::kShrinks},
           {},
           "format '{format}' takes all KV heads of a layer together, but {splitter} lets them keep different numbers of tokens"}};
}

}  // namespace kvlab
