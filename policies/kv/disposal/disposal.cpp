#include "policies/kv/disposal/disposal.h"

namespace kvlab {

Traits Disposal::provides() const {
  Traits traits;
  traits.set(Trait::kShrinks, shrinks());
  traits.set(Trait::kKeepsOthers, !only_drops());
  return traits;
}

std::vector<Conflict> Disposal::conflicts() const {
  const std::string changes = "disposal '{disposal}' changes tokens after format '{format}' encoded them";
  if (acts_alone())
    return {{{Trait::kActs}, {}, "disposal '{disposal}' keeps every token, so the trigger must be 'never'"},
            {{Trait::kEncodes}, {}, changes}};
  std::vector<Conflict> all;
  if (!only_drops()) all.push_back({{}, {Trait::kActs}, "disposal '{disposal}' has nothing to do, because the trigger is 'never'"});
  if (!shrinks())
    all.push_back({{Trait::kEncodes},
                   {},
                   "disposal '{disposal}' stores tokens in a precision of its own, so the format must be 'native', not '{format}'"});
  // At the prompt's end merging comes first.
  if (merges()) all.push_back({{Trait::kEncodes, Trait::kCutsAgain}, {}, changes + "; trigger 'prefill_end' merges before"});
  return all;
}

}  // namespace kvlab
