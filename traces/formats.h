#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/config/registry.h"
#include "traces/line_reader.h"
#include "traces/row_reader.h"

namespace kvlab {

struct TraceFormat {
  virtual ~TraceFormat() = default;

  // `line`: the first. The first format by name wins: bailian before mooncake.
  std::function<bool(std::string_view line)> recognises;
  std::function<bool(const std::string& path)> recognises_folder = [](const std::string&) { return false; };
  bool is_guessed = true;
  bool is_document = false;  // not lines; recognises() gets up to 256 KiB
  std::function<std::unique_ptr<RowReader>(std::unique_ptr<LineReader> lines, const ReaderOptions& options)> read;
  std::function<std::unique_ptr<RowReader>(const std::string& path, const ReaderOptions& options)> read_folder;
};

using TraceFormatRegistry = Registry<TraceFormat>;

// For a `Reader` with Options, made of Params; recognises(line); a constructor from lines, common options and its own. Optional:
// kIsGuessed, kIsDocument; recognises_folder(path) and a constructor from the path. Its file in traces/readers/ ends in:
//   KVLAB_REGISTER_TRACE(Vidur, "vidur", "arrived_at,num_prefill_tokens,num_decode_tokens", "");
template <class Reader>
struct FormatOf final : TraceFormat {
  explicit FormatOf(Params& p) {
    const typename Reader::Options own(p);
    recognises = Reader::recognises;
    read = [own](std::unique_ptr<LineReader> lines, const ReaderOptions& options) {
      return std::make_unique<Reader>(std::move(lines), options, own);
    };
    if constexpr (requires { Reader::kIsGuessed; }) is_guessed = Reader::kIsGuessed;
    if constexpr (requires { Reader::kIsDocument; }) is_document = Reader::kIsDocument;
    if constexpr (requires(const std::string& path) { Reader::recognises_folder(path); }) {
      recognises_folder = Reader::recognises_folder;
      read_folder = [own](const std::string& path, const ReaderOptions& options) { return std::make_unique<Reader>(path, options, own); };
    }
  }
};
#define KVLAB_REGISTER_TRACE(Reader, ...) \
  [[maybe_unused]] const bool Reader##_is_registered = TraceFormatRegistry::add<FormatOf<Reader>>(Card{__VA_ARGS__})

class TraceFormats {
 public:
  explicit TraceFormats(Params& p);
  // Format `name`; "": guessed. Refuses options of other formats.
  [[nodiscard]] std::unique_ptr<RowReader> open(const std::string& path, const std::string& name, const ReaderOptions& options) const;
  [[nodiscard]] std::unique_ptr<RowReader> read(std::unique_ptr<LineReader> lines, const std::string& name,
                                                const ReaderOptions& options) const {
    return formats_.at(name)->read(std::move(lines), options);
  }
  // "": guessed from the first line, which stays unread. Throws InputError if the lines look like another format that fits, like none, or
  // like another tool's results.
  [[nodiscard]] std::string find(const std::string& name, LineReader& lines) const;

 private:
  [[nodiscard]] std::string sniff(LineReader& lines, std::string_view head) const;
  // "" if none or several.
  [[nodiscard]] std::string format_of_folder(const std::string& path, const std::string& name) const;
  void refuse_options_of_others(const std::string& name) const;

  Params p_;
  std::map<std::string, std::unique_ptr<TraceFormat>> formats_;
};

// Default options; "": guessed.
std::unique_ptr<RowReader> open_trace(const std::string& path, const std::string& format = "", const ReaderOptions& options = {});

}  // namespace kvlab
