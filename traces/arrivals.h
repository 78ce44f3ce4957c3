#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "base/request_facts.h"
#include "base/time.h"
#include "traces/trace.h"

namespace kvlab {

struct Arrival {
  Time at{};                                 // kNever: no more
  const ClassName* request_class = nullptr;  // null: none
};

struct ArrivalProcess {
  std::function<Arrival(Time recorded)> next;  // `recorded`: in the trace
  ClosedLoop loop{};
  bool ends = false;  // next() gives kNever eventually
};

// `arrival:` (docs/traces.md). Random gaps precede each request. Throws InputError beyond 106 days.
ArrivalProcess make_arrivals(const std::string& name, Params& p, std::uint64_t seed);

const std::vector<std::string>& arrival_names();

// "" if `name` can name a request class.
std::string fault_of_class_name(const std::string& name);

}  // namespace kvlab
