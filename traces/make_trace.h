#pragma once

#include <cstdint>
#include <memory>

#include "base/config/params.h"
#include "traces/row_reader.h"

namespace kvlab {

// A `trace:` mapping's source: `file: PATH` or `generate: {...}` (docs/traces.md). Throws InputError for keys without effect. `seed`
// determines random choices. Streams except for `sort`, `jitter_ms` and lengths from a file. `count_tokens`: for formats with text; empty:
// they estimate.
std::unique_ptr<TraceSource> make_trace(Params& p, std::uint64_t seed, const TokenCounter& count_tokens = {});

}  // namespace kvlab
