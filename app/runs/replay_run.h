#pragma once

#include <string>

#include "app/runs/experiment.h"
#include "app/runs/summary_row.h"
#include "base/params.h"
#include "policies/kv/recipe.h"

namespace kvlab {

// A run on recorded attention (`host: replay`): one recipe over all samples.
struct ReplayFindings {
  Fields fields;          // of summary.csv, averages over samples
  std::string heads_csv;  // per sample, layer and KV head
  std::string steps_csv;  // per sample and decode step
  std::string note;       // on samples that keep more than the budget
};

// The fields of a serving run on its KV policy's fidelity, replayed on the experiment's `samples`: recipe, budget_tokens, attention_mass,
// output_rel_err, topk_recall, resident_bytes_frac and family. Runs with equal recipe, samples, kv_bytes and seed share one replay. Errors
// as below.
Fields fidelity_fields(Params& p, const Recipe& recipe, std::uint64_t seed);

// Reads the samples and runs. Errors: InputError with file:line:column, or naming recipe and sample.
ReplayFindings run_replay(Params& p, const Recipe& recipe, const std::string& run_id, std::uint64_t seed);

}  // namespace kvlab
