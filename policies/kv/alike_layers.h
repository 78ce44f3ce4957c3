#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace kvlab {

// Groups of layers that make the same calls in a step, so that one of each needs to run: those that the parts treat alike, as far as runs
// of all layers confirm it. The first runs are of all layers, and later ones now and then. Layers that differ in one of the first are
// split; if some differ after that, all layers run from then on.
class AlikeLayers {
 public:
  using PerLayer = std::vector<std::vector<OpCall>>;  // [num_layers]
  // first_of [num_layers]: the first layer that is like this one.
  explicit AlikeLayers(const std::vector<std::int32_t>& first_of);

  // True: all layers must run next time, and see() gets the result.
  [[nodiscard]] bool wants_all() const { return is_refuted_ || proven_ < kProven || trusted_ >= kTrusted; }
  // The first layer of each class.
  [[nodiscard]] std::span<const std::int32_t> chosen() const { return chosen_; }
  // A run of all layers. `of_chosen` runs the chosen ones alone in the same step, which must change nothing.
  template <class RunChosen>
  void see(const PerLayer& all, RunChosen&& of_chosen) {
    trusted_ = 0;
    if (is_refuted_) return;
    const bool held = all == spread(all);
    is_refuted_ = !held && proven_ >= kProven;
    if (!held) split(all);
    if (proven_ >= kProven || std::ssize(chosen_) == std::ssize(class_of_)) return;
    proven_ = held && spread(of_chosen()) == all ? proven_ + 1 : 0;
  }
  // Calls of all layers from those of the chosen ones; the others of `some` are not looked at.
  [[nodiscard]] PerLayer spread(const PerLayer& some) const;
  // A step that ran chosen layers alone.
  void note_trusted() { ++trusted_; }

 private:
  static constexpr int kProven = 24, kTrusted = 15;
  void split(const PerLayer& all);

  std::vector<std::int32_t> class_of_;  // [num_layers]
  std::vector<std::int32_t> chosen_;    // [classes]
  int proven_ = 0, trusted_ = 0;        // runs since classes were split, and since all layers ran
  bool is_refuted_ = false;
};

}  // namespace kvlab
