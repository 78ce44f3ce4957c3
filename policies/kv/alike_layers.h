#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace kvlab {

// Which layers make the same calls in a step, so that one of them needs to run: those that the parts say they treat alike, as far as runs
// of all layers bear it out. The first runs are all of that kind, and later ones now and then; layers that differ in one are told apart,
// and where some do after that, all layers run for ever.
class AlikeLayers {
 public:
  using PerLayer = std::vector<std::vector<OpCall>>;  // [num_layers]
  // first_of [num_layers]: the first layer that is like this one.
  explicit AlikeLayers(const std::vector<std::int32_t>& first_of);

  // Whether all layers are to run next time, and then see() is to be told of it.
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
