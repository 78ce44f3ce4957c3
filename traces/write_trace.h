#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "traces/bytes.h"
#include "traces/trace.h"

namespace kvlab {

// Appends rows; a header with the first.
using TraceWriter = std::function<void(const TraceRequest& request, std::string& text)>;

// "csv", "jsonl": lossless. "mooncake": Dynamo's dialect, small ids by appearance, block_size per row; microseconds, no hashes beyond the
// prompt.
TraceWriter make_trace_writer(const std::string& format);
std::vector<std::string> trace_writer_names();

// Compresses .gz and .zst. `format` "": by extension, .csv or .jsonl. Replaces a file at the end. Returns the number of requests.
std::uint64_t write_trace(TraceSource& source, const std::string& path, const std::string& format = "");

}  // namespace kvlab
