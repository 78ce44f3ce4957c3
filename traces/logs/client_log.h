#pragma once

#include <optional>
#include <string>

#include "traces/logs/real_log.h"

namespace kvlab {

// The requests of a load generator's result file; null where `text` is of neither kind:
// - the JSON of `vllm bench serve --save-result --save-detailed`, and of SGLang's bench_serving with --output-details;
// - AIPerf's profile_export.jsonl.
// InputError where it holds totals only, or a value that cannot be.
std::optional<RequestLog> read_client_log(const std::string& text, const std::string& file);

}  // namespace kvlab
