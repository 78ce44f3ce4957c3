#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

// Names that a key may take, with parameters: policies of a registry, or distributions.
struct NameKind {
  std::vector<std::string> names;
  std::function<std::string(const std::string& name)> summary;       // one line, or ""
  std::function<void(const std::string& name, Params& p)> describe;  // asks for the parameters
  bool takes_none = false;                                           // also allows `none`
  long long largest_number = 0;                                      // also allows 1 to this; 0: none
};

// "scheduler", "scorer", "length", ...
const std::map<std::string, NameKind>& name_kinds();

// "": none. owner: path of the mapping in the experiment ("": top level), or the kind of the policy that has the parameter.
std::string name_kind_of(const std::string& owner, const std::string& key);

}  // namespace kvlab
