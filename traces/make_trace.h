#pragma once

#include <cstdint>
#include <memory>

#include "base/params.h"
#include "traces/row_reader.h"

namespace kvlab {

// Builds what the `trace:` mapping of an experiment describes, a file (`file: PATH`) or generated requests (`generate: {...}`),
// and refuses keys that have no meaning there. docs/traces.md lists the keys. Every random choice follows from `seed`.
// Streams wherever it can: only `sort`, `jitter_ms` and lengths taken from a file hold a trace in memory.
// `count_tokens`: for formats that hold text, which estimate where it is empty.
std::unique_ptr<TraceSource> make_trace(Params& p, std::uint64_t seed, const TokenCounter& count_tokens = {});

}  // namespace kvlab
