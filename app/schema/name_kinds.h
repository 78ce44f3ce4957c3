#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/params.h"

namespace kvlab {

// Names that a key may take, each with parameters of its own: the policies of a registry, or distributions.
struct NameKind {
  std::vector<std::string> names;
  std::function<std::string(const std::string& name)> summary;       // one line for editors; "": none
  std::function<void(const std::string& name, Params& p)> describe;  // asks for the parameters of `name`
  bool takes_none = false;                                           // `none` is allowed, too
  long long largest_number = 0;                                      // a whole number from 1 to this is allowed, too; 0: no number
};

// Kinds by their name: "scheduler", "scorer", "length", ...
const std::map<std::string, NameKind>& name_kinds();

// The kind of the names that `key` takes. owner: the path of the experiment's mapping that has it ("": the top level), or the kind of the
// policy whose parameter it is. "": it takes no names of a kind.
std::string name_kind_of(const std::string& owner, const std::string& key);

}  // namespace kvlab
