#pragma once

#include <functional>
#include <string>

#include "app/runs/setup.h"
#include "app/runs/summary_row.h"

namespace kvlab {

struct ServedFindings {
  Fields fields;
  std::string label, note, skipped, not_served, steps_csv;
};

// Serves the run's trace with the engine. For each step, steps_csv has the measured time and the time that the profile predicts:
// `run,step,planned_ns,start_ns,end_ns,measured_ns,predicted_ns,requests,tokens,decodes,decode_kv_tokens,prefill_kv_tokens,waiting`.
// each_turn: called between steps; what it throws ends the run.
ServedFindings serve_run(const RunPlan& plan, const std::string& run_id, RunSink& sink, const std::function<void()>& each_turn);

}  // namespace kvlab
