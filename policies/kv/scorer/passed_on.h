#pragma once

#include <string>

#include "policies/kv/scorer/scorer.h"

namespace kvlab {

// Inputs that a wrapper gives its inner scorer.
struct PassedOn {
  std::string wrapper;
  bool whole_step = true;  // false: only `needs` of LayerStep::in, no token statistics
  Needs needs = {};        // `turns`, `cpu_only`, `weights` are always met
  bool refines = true;
  bool adds_scores = false;  // infinite scores hide others
};

// First tensor of `needs` that `given` lacks, or ""; not `turns`, `cpu_only` or `weights`.
std::string first_not_given(const Needs& needs, const Needs& given);

// "" or why the wrapper cannot build on the scorer `name`, then scorers that fit and `or_else`.
std::string why_not_inside(const PassedOn& passed, const Scorer& inner, const std::string& name, const std::string& or_else = "");

}  // namespace kvlab
