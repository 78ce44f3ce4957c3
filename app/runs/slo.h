#pragma once

#include <optional>

#include "app/runs/trace_input.h"
#include "base/params.h"
#include "serving/metrics.h"
#include "serving/qoe.h"

namespace kvlab {

// Reads `slo` (docs/experiments.md). InputError with file:line:column.
Slo read_slo(Params& p);

// Reads `qoe`; none: the experiment has none.
std::optional<ExpectedText> read_expected_text(Params& p);

// Refuses targets of a class or client that the trace never has, with those that it has. A generator knows its classes and clients; of
// other traces rows are read until every name of `slo` has come, so all of them only before an error or for a rare name.
void check_slo_groups(Params& p, const Slo& slo, const OpenTrace& open);

}  // namespace kvlab
