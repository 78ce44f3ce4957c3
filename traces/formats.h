#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/readers/readers.h"

namespace kvlab {

// A file format as users name it (`format:`) and how it is recognised.
struct TraceFormat {
  std::string name;
  std::string columns;                   // what it looks like, for lists and messages
  bool (*looks_like)(std::string_view);  // given a file's first line
  MakeReader* read;
};

const std::vector<TraceFormat>& trace_formats();

// The format called `name`; InputError with the known ones when there is none.
const TraceFormat& trace_format(const std::string& name);

// The format of a file by its first line, which remains to be read. InputError when it looks like none.
const TraceFormat& sniff_format(LineReader& lines);

// The format called `name`, for these lines; InputError where they are of another one that the columns of this one would fit too.
const TraceFormat& chosen_format(const std::string& name, LineReader& lines);

// Opens a trace; an empty `format` is found out by looking at the first line.
std::unique_ptr<RowReader> open_trace(const std::string& path, const std::string& format = "", const ReaderOptions& options = {});

}  // namespace kvlab
