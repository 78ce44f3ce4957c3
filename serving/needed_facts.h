#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "base/request_facts.h"
#include "traces/trace.h"

namespace kvlab {

// Throws InputError if a needed fact is missing. number: position in the trace. policies: those that need it.
inline void require_facts(std::uint64_t number, const RequestFacts* facts, std::span<const Fact> needed, const std::string& policies) {
  for (const Fact fact : needed) {
    if (has_fact(facts, fact)) continue;
    throw InputError("request " + std::to_string(number) + " of the trace (counted from 0) has no '" + std::string(column_of(fact)) +
                     "', which " + policies + " needs: fill in that column in every row, or let 'generate' make it (docs/orders.md)");
  }
}

// Throws InputError without a session, by which copies of the turn before are found.
inline void require_session(const TraceRequest& request) {
  if (request.session >= 0) return;
  throw InputError(
      "request " + std::to_string(request.number) +
      " of the trace (counted from 0) has no 'session', by which 'memory.swap_keeps_turns' finds copies of the turn before: fill "
      "in that column in every row, or let 'generate: {sessions: ...}' make it");
}

}  // namespace kvlab
