#include "policies/kv/alike_layers.h"

namespace kvlab {

AlikeLayers::AlikeLayers(const std::vector<std::int32_t>& first_of) : class_of_(first_of.size()) {
  for (std::size_t l = 0; l < first_of.size(); ++l) {
    const auto first = static_cast<std::size_t>(first_of[l]);
    class_of_[l] = first == l ? static_cast<std::int32_t>(chosen_.size()) : class_of_[first];
    if (first == l) chosen_.push_back(static_cast<std::int32_t>(l));
  }
}

AlikeLayers::PerLayer AlikeLayers::spread(const PerLayer& some) const {
  PerLayer all;
  for (const std::int32_t c : class_of_) all.push_back(some[static_cast<std::size_t>(chosen_[static_cast<std::size_t>(c)])]);
  return all;
}

// Layers stay together that were and that are the same here.
void AlikeLayers::split(const PerLayer& all) {
  std::vector<std::int32_t> class_of, chosen;
  for (std::size_t l = 0; l < class_of_.size(); ++l) {
    std::size_t c = 0;
    for (; c < chosen.size(); ++c) {
      const auto first = static_cast<std::size_t>(chosen[c]);
      if (class_of_[first] == class_of_[l] && all[first] == all[l]) break;
    }
    if (c == chosen.size()) chosen.push_back(static_cast<std::int32_t>(l));
    class_of.push_back(static_cast<std::int32_t>(c));
  }
  class_of_ = std::move(class_of), chosen_ = std::move(chosen);
}

}  // namespace kvlab
