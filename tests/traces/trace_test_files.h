#pragma once

#include <memory>

#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/test_files.h"
#include "traces/formats.h"
#include "traces/in_memory.h"
#include "traces/make_trace.h"

namespace kvlab {

using ::testing::ElementsAre;

// own: the options of the formats, as YAML, and `format` where it is not guessed.
inline std::unique_ptr<RowReader> reader_of(const std::string& text, const ReaderOptions& options = {}, const std::string& own = "{}") {
  auto lines = std::make_unique<LineReader>("f", bytes_in_memory("f", text));  // `text` must outlive the reader
  Params p = Params::from_text(own);
  const TraceFormats formats(p);
  const std::string format = formats.find(p.text("format", "", ""), *lines);
  return formats.read(std::move(lines), format, options);
}

inline InMemoryTrace read_all(const std::string& text, const ReaderOptions& options = {}, const std::string& own = "{}") {
  return InMemoryTrace(reader_of(text, options, own));
}

// A field of every request.
template <class Field>
std::vector<Field> each(const InMemoryTrace& trace, Field TraceRequest::*field) {
  std::vector<Field> all;
  for (std::size_t i = 0; i < trace.size(); ++i) all.push_back(trace.at(i).*field);
  return all;
}

inline ReaderOptions without_arrivals() {
  ReaderOptions options;
  options.uses_arrivals = false;
  return options;
}

inline std::unique_ptr<TraceSource> trace_of(const std::string& yaml, std::uint64_t seed = 1) {
  Params p = Params::from_text(yaml);
  return make_trace(p, seed);
}

// A file of this name and text, read with more keys of `trace`.
inline InMemoryTrace trace_in_file(const std::string& name, const std::string& text, const std::string& keys) {
  const TempFolder folder;
  return InMemoryTrace(trace_of("{file: " + folder.write(name, text) + ", " + keys + "}"));
}

}  // namespace kvlab
