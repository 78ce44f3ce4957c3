#pragma once

#include <string>

#include "base/params.h"
#include "base/text.h"

namespace kvlab {

// Refuses an unknown name at the place where the file names it.
template <class Registry>
void require_known(const Params& p, const std::string& key, const std::string& name, const std::string& kind) {
  if (!Registry::table_view().contains(name)) p.fail_at(key, "unknown " + kind + " '" + name + "'" + suggestion(name, Registry::names()));
}

}  // namespace kvlab
