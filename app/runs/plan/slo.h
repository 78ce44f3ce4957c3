#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/runs/plan/trace_input.h"
#include "base/config/params.h"
#include "serving/metrics.h"
#include "serving/qoe.h"

namespace kvlab {

std::string slo_folder();

// Reads {summary, source, attainment, ttft_ms, tpot_ms, tbt_ms, e2e_ms}. Throws InputError with file:line:column.
Params read_slo_file(const std::string& file);

// Reads `slo` (docs/experiments.md). Throws InputError with file:line:column.
Slo read_slo(Params& p);

// Limits of "ttft", "tpot" and "e2e" from the preset that `slo` names; empty without one.
std::vector<std::pair<std::string, double>> preset_limits_ms(Params p);

// Default share of requests that must meet the SLO: the preset's, else 0.9.
double usual_attainment(Params p);

// Reads `qoe`; nullopt if absent.
std::optional<ExpectedText> read_expected_text(Params& p);

// Refuses targets of classes or clients that the trace lacks, naming those it has. Generators know them; other traces are read until all
// names were seen.
void check_slo_groups(Params& p, const Slo& slo, const OpenTrace& open);

}  // namespace kvlab
