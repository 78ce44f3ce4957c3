#include "app/commands/named_recipe.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

Recipe named_recipe(const std::string& name, std::int32_t budget_tokens) {
  const std::vector<std::string> names = recipe_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw InputError("unknown recipe '" + name + "'" + suggestion(name, names));
  return load_recipe(name, budget_tokens);
}

}  // namespace kvlab
