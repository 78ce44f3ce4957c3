#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "traces/bytes.h"
#include "traces/trace.h"

namespace kvlab {

// Writes a trace row by row.
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  // Appends the text of one request (and, before the first, of the header) to `text`.
  virtual void append(const TraceRequest& request, std::string& text) = 0;
};

// "csv" and "jsonl": our own formats, every field of TraceRequest, read back as the same requests.
// "mooncake": Mooncake's columns in Dynamo's dialect, hashes as small ids in order of appearance, block_size in each row;
// times rounded to microseconds, and hashes that reach beyond the prompt are left out, as that format has no place for them.
std::unique_ptr<TraceWriter> make_trace_writer(const std::string& format);
std::vector<std::string> trace_writer_names();

// Writes all of `source` to `path`, packed if it ends in .gz or .zst. An empty `format` follows from the name: .csv or .jsonl. A file of
// that name is replaced only once all has been written. Returns the number of requests.
std::uint64_t write_trace(TraceSource& source, const std::string& path, const std::string& format = "");

}  // namespace kvlab
