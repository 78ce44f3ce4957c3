#include "sim/cost/fitting.h"

#include <fmt/format.h>

#include "base/config/spec_file.h"
#include "base/error.h"

namespace kvlab {

namespace {

constexpr int kMostRanks = 16;

// Smallest tp from `first`, in powers of two, that fits; 0: none.
int fewest_ranks(CostSetup setup, int first, const std::function<bool(const CostSetup&)>& fits) {
  for (int tp = first; tp <= kMostRanks; tp *= 2) {
    if (setup.model.q_heads % tp != 0) continue;
    if (setup.parallel.ep > 1) setup.parallel.ep = tp * setup.parallel.dp;
    setup.parallel.tp = tp;
    if (fits(setup)) return tp;
  }
  return 0;
}

}  // namespace

std::string setups_that_fit(const CostSetup& setup, const std::function<bool(const CostSetup&)>& fits) {
  const int own = fewest_ranks(setup, 1, fits);
  std::string text = own > setup.parallel.tp ? fmt::format("tp: {}", own) : "";
  for (const char* card : {"h200", "b200"}) {
    CostSetup larger = setup;
    try {
      larger.hardware = load_hardware_spec(card, profiles_folder() + "/hardware");
    } catch (const InputError&) {
      continue;
    }
    if (larger.hardware.memory_bytes <= setup.hardware.memory_bytes) continue;
    const int ranks = fewest_ranks(larger, 1, fits);
    if (ranks == 0 || (own > 0 && ranks >= own)) continue;
    return text + fmt::format("{}{} x {}", text.empty() ? "" : ", or ", ranks * setup.parallel.pp * setup.parallel.dp, card);
  }
  return text;
}

}  // namespace kvlab
