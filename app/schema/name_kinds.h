#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

// Names that a key may take, each with parameters: policies of a registry, or distributions.
struct NameKind {
  std::vector<std::string> names;
  std::function<std::string(const std::string& name)> summary;       // one line, or ""
  std::function<void(const std::string& name, Params& p)> describe;  // asks for the parameters of `name`
  bool takes_none = false;                                           // also allows `none`
  long long largest_number = 0;                                      // also allows whole numbers from 1 to this; 0: none
};

// By name of the kind: "scheduler", "scorer", "length", ...
const std::map<std::string, NameKind>& name_kinds();

// Kind of the names that `key` takes, or "". owner: path of the mapping in the experiment ("": top level), or the kind of the policy whose
// parameter it is.
std::string name_kind_of(const std::string& owner, const std::string& key);

}  // namespace kvlab
