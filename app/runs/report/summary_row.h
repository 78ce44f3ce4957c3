#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/runs/report/bill.h"
#include "sim/simulation.h"

namespace kvlab {

// (column, value) in file order. "": no value.
using Fields = std::vector<std::pair<std::string, std::string>>;

// docs/results.md.
struct Answer {
  std::int64_t gpus = 1;
  std::string binding_limit, waits_for;  // "": none
};

// Without run, axes and seed (docs/results.md). Equal results give equal bytes. If not simulated, step time shares and bill are empty.
Fields summary_fields(const RunSummary& summary, const SimSetup& setup, const Bill& bill, const Answer& answer, bool is_simulated = true);

// By class and client (docs/results.md).
std::string service_csv(const std::string& run_id, const GroupSummary& groups, bool has_qoe);
// Rejected requests, with the first reason, and unfinished ones. No latency includes them.
std::string not_served(const ServingSummary& summary);

// On the trace, the timeline, requests over budget, and a warm-up that takes all requests.
std::vector<std::string> remarks_on(const ServingSummary& summary);

// Basis of step times, whether the KV block count is given or derived, time in overload.
std::string credibility_label(const RunSummary& summary, const SimSetup& setup, const std::string& cost_source);

}  // namespace kvlab
