#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/runs/bill.h"
#include "sim/simulation.h"

namespace kvlab {

// Column and value, in the order of the file. "" is a value that does not exist.
using Fields = std::vector<std::pair<std::string, std::string>>;

// Columns that sum up a run: the GPUs in use, the limit that binds, and what requests wait for (docs/results.md).
struct Answer {
  std::int64_t gpus = 1;
  std::string binding_limit, waits_for;  // "": none
};

// A run's row of summary.csv (docs/results.md), without its number, axes and seed. Fixed formats: equal results give equal bytes. Fields
// that only a cost model knows (shares of step time) are empty if the run was not simulated, and so is the bill.
Fields summary_fields(const RunSummary& summary, const SimSetup& setup, const Bill& bill, const Answer& answer, bool is_simulated = true);

// service.csv: a row per class and client (docs/results.md).
std::string service_csv(const std::string& run_id, const GroupSummary& groups, bool has_qoe);
// How many requests were rejected, and why the first was, and how many were unfinished: their latencies are in no column. "": none.
std::string not_served(const ServingSummary& summary);

// Remarks for the reader of a run: on the host, on the trace's times, and on a warm-up that takes every request. "": nothing.
std::string remarks_on(const ServingSummary& summary);

// How far to trust the run: what its step times rest on, whether the KV block count is given or derived, time in overload.
std::string credibility_label(const RunSummary& summary, const SimSetup& setup, const std::string& cost_source);

}  // namespace kvlab
