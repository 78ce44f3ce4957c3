#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/runs/trace_input.h"
#include "base/params.h"
#include "serving/metrics.h"
#include "serving/qoe.h"

namespace kvlab {

// The folder of named limits.
std::string slo_folder();

// Limits in a file: {summary, source, attainment, ttft_ms, tpot_ms, tbt_ms, e2e_ms}. InputError with file:line:column.
Params read_slo_file(const std::string& file);

// Reads `slo` (docs/experiments.md). InputError with file:line:column.
Slo read_slo(Params& p);

// "ttft", "tpot" and "e2e" with their limits, of an `slo` that names a preset; none of others, which say them in the experiment.
std::vector<std::pair<std::string, double>> preset_limits_ms(Params p);

// The share of requests that must meet the SLO unless a search says another: that of the preset which `slo` names, else 0.9.
double usual_attainment(Params p);

// Reads `qoe`; none: the experiment has none.
std::optional<ExpectedText> read_expected_text(Params& p);

// Refuses targets of a class or client that the trace never has, with those that it has. A generator knows its classes and clients; of
// other traces rows are read until every name of `slo` has come, so all of them only before an error or for a rare name.
void check_slo_groups(Params& p, const Slo& slo, const OpenTrace& open);

}  // namespace kvlab
