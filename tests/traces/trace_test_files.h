#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "traces/formats.h"
#include "traces/in_memory.h"
#include "traces/make_trace.h"

namespace kvlab {

// A folder of its own per test program run, removed at the end.
class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / ("kvlab_traces_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::binary) << text;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

// own: the options of the formats, as YAML.
inline std::unique_ptr<RowReader> reader_of(const std::string& text, const ReaderOptions& options = {}, const std::string& own = "{}") {
  auto lines = std::make_unique<LineReader>("f", bytes_in_memory("f", text));  // `text` must outlive the reader
  Params p = Params::from_text(own);
  const TraceFormats formats(p);
  const std::string format = formats.find("", *lines);
  return formats.read(std::move(lines), format, options);
}

inline InMemoryTrace read_all(const std::string& text, const ReaderOptions& options = {}, const std::string& own = "{}") {
  return InMemoryTrace(reader_of(text, options, own));
}

inline std::unique_ptr<TraceSource> trace_of(const std::string& yaml, std::uint64_t seed = 1) {
  Params p = Params::from_text(yaml);
  return make_trace(p, seed);
}

inline std::string data_file(const std::string& path) {
  const char* folder = std::getenv("KVLAB_DATA");
  return std::string(folder != nullptr ? folder : KVLAB_SOURCE_DIR "/../shared/data") + "/" + path;
}

}  // namespace kvlab
