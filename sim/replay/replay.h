#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "policies/kv/policy/policy.h"
#include "sim/replay/reference.h"
#include "traces/attention_trace.h"

namespace kvlab {

// One step and layer, mean over query heads.
struct Fidelity {
  double attention_mass = 0;  // on attended tokens
  double output_rel_err = 0;  // |o - o_full| / |o_full|
  double topk_recall = 0;     // of the most attended tokens
  double kl = 0;              // KL(policy || full) in nats, common tokens
  double needle = 0;          // share attended to; 1 without
  double attended_tokens = 0;
  // Attention on far tokens (not the first 4 or last 64) and its part on attended ones; the same for needles. Shares are ratios of means.
  double far_mass = 0, far_mass_kept = 0, needle_mass = 0, needle_mass_kept = 0;
  [[nodiscard]] double far_share() const { return far_mass > 0 ? far_mass_kept / far_mass : 1; }
  [[nodiscard]] double needle_mass_share() const { return needle_mass > 0 ? needle_mass_kept / needle_mass : 1; }
  Fidelity& operator+=(const Fidelity& o);
  Fidelity& operator*=(double factor);
};

struct KeptAtStep {
  std::int32_t step = 0;                        // with this one
  std::vector<std::vector<std::int32_t>> rows;  // [num_layers * kv_heads], ascending
};

struct ReplayResult {
  Fidelity mean;                   // over steps, layers, heads
  std::vector<Fidelity> by_layer;  // [num_layers]
  std::vector<Fidelity> by_head;   // [num_layers * kv_heads]
  std::vector<Fidelity> by_step;   // [num_steps]
  double kept_tokens = 0;          // per layer and KV head, after the prompt
  std::int32_t budget_tokens = 0;  // the prompt's length without budget
  bool exceeds_budget = false;
  double resident_bytes_frac = 0;  // GPU, over the full cache's, mean over steps
  double host_bytes_frac = 0, disk_bytes_frac = 0;
  double peak_prefill_frac = 0;  // over the full prompt's
  Traffic traffic;
  std::int32_t num_steps = 0;
  // Prefill selector; means over queries, query heads and layers.
  struct Prompt {
    double mass = 0;            // on chosen keys
    double output_rel_err = 0;  // |o - o_full| / |o_full|
    double pairs_frac = 0;      // of causal pairs
  };
  std::optional<Prompt> prompt;
  std::vector<TierBytes> resident;              // after each step and prefill chunk
  std::vector<std::vector<std::int32_t>> kept;  // [num_layers * kv_heads] final positions
  // [num_layers * kv_heads] ascending, with options.lists_kept.
  std::vector<std::vector<std::int32_t>> kept_of_prompt;
  std::vector<KeptAtStep> kept_of_steps;  // with options.lists_kept_steps
};

struct ReplayOptions {
  std::uint64_t seed = 1;
  std::uint64_t draws = 0;
  std::int32_t kv_bytes = 2;  // per uncompressed element
  Ops* ops = nullptr;         // may be null
  CountSource* counts = nullptr;
  bool lists_kept = false;
  bool lists_kept_steps = false;
};

// Throws InputError if the recipe does not claim this host, fit these sizes, or needs what the trace lacks.
ReplayResult replay(const AttentionTrace& trace, const AttentionReference& reference, const Recipe& recipe,
                    const ReplayOptions& options = {});

}  // namespace kvlab
