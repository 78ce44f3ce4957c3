#pragma once

#include <functional>
#include <string>

#include "app/runs/kinds/run_kind.h"
#include "base/config/params.h"

namespace kvlab {

// Makes one at once to find errors early.
template <class Registry>
auto policy_factory(Params& p, const std::string& key, const std::string& fallback, const std::string& kind, const std::string& meaning,
                    const std::function<void(const std::string& name, Params& own)>& prepare = {}) {
  auto chosen = p.named(key, fallback, meaning);
  require_known<Registry>(p, key, chosen.first, kind);
  if (prepare) prepare(chosen.first, chosen.second);
  auto make = [name = chosen.first, params = chosen.second, kind] {
    Params own = params;
    return Registry::make(name, own, kind);
  };
  make();
  return make;
}

}  // namespace kvlab
