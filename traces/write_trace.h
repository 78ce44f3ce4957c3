#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "traces/bytes.h"
#include "traces/trace.h"

namespace kvlab {

class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  // The first time after the header.
  virtual void append(const TraceRequest& request, std::string& text) = 0;
};

// "csv", "jsonl": lossless. "mooncake": Dynamo's dialect, small ids by appearance, block_size per row; microseconds, no hashes beyond the
// prompt.
std::unique_ptr<TraceWriter> make_trace_writer(const std::string& format);
std::vector<std::string> trace_writer_names();

// Compresses .gz and .zst. `format` "": by extension, .csv or .jsonl. Replaces a file at the end. Returns the number of requests.
std::uint64_t write_trace(TraceSource& source, const std::string& path, const std::string& format = "");

}  // namespace kvlab
