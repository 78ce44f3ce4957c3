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

// Reads {summary, source, attainment, ttft_ms, tpot_ms, tbt_ms, e2e_ms}. Throws InputError.
Params read_slo_file(const std::string& file);

// Reads `slo` (docs/experiments.md). Throws InputError.
Slo read_slo(Params& p);

// "ttft", "tpot" and "e2e" of the named preset; empty without one.
std::vector<std::pair<std::string, double>> preset_limits_ms(Params p);

// The preset's, else 0.9.
double usual_attainment(Params p);

// Reads `qoe`; nullopt if absent.
std::optional<ExpectedText> read_expected_text(Params& p);

// Refuses targets of classes or clients that the trace lacks. Reads traces until all names were seen; generators know them.
void check_slo_groups(Params& p, const Slo& slo, const OpenTrace& open);

}  // namespace kvlab
