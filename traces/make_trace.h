#pragma once

#include <cstdint>
#include <memory>

#include "base/config/params.h"
#include "traces/row_reader.h"

namespace kvlab {

// `trace:` is `file: PATH` or `generate: {...}` (docs/traces.md). Throws InputError for keys without effect. Streams except for `sort`,
// `jitter_ms` and lengths from a file. `count_tokens`: for text; empty: estimates.
std::unique_ptr<TraceSource> make_trace(Params& p, std::uint64_t seed, const TokenCounter& count_tokens = {});

// Reads `generate:`.
std::unique_ptr<TraceSource> generated_trace(Params& p, std::uint64_t seed);

}  // namespace kvlab
