#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.h"
#include "traces/line_reader.h"
#include "traces/row_reader.h"

namespace kvlab {

// A file format as users name it (`format:`), with its own options out of the `trace:` mapping. Its card's summary has the columns.
class TraceFormat {
 public:
  virtual ~TraceFormat() = default;
  // If `line`, the first of a file, may be of this format. If several recognise it, the first by name is taken: bailian before mooncake,
  // whose columns it has too.
  [[nodiscard]] virtual bool recognises(std::string_view line) const = 0;
  // False for formats that must be named, since their files look like those of another.
  [[nodiscard]] virtual bool is_guessed() const { return true; }
  // True where a file is no sequence of lines, and recognises() is given its first bytes (up to 256 KiB) in place of its first line.
  [[nodiscard]] virtual bool is_document() const { return false; }
  // If the folder may be a trace of this format.
  [[nodiscard]] virtual bool recognises_folder(const std::string& /*path*/) const { return false; }
  [[nodiscard]] virtual std::unique_ptr<RowReader> read(std::unique_ptr<LineReader> lines, const ReaderOptions& options) const = 0;
  // Null where the format has no folders.
  [[nodiscard]] virtual std::unique_ptr<RowReader> read_folder(const std::string& /*path*/, const ReaderOptions& /*options*/) const {
    return nullptr;
  }
};

using TraceFormatRegistry = Registry<TraceFormat>;

// The format whose rows `Reader` reads. A reader has: Options, made of Params; recognises(line); a constructor from lines, the options of
// all readers and its own. It may have kIsGuessed, kIsDocument, and for folders recognises_folder(path) and a constructor from the path in
// place of lines. Its file, in traces/readers/, ends in one line:
//   KVLAB_REGISTER_TRACE(Vidur, "vidur", "arrived_at,num_prefill_tokens,num_decode_tokens", "");
template <class Reader>
class FormatOf final : public TraceFormat {
 public:
  explicit FormatOf(Params& p) : own_(p) {}
  [[nodiscard]] bool recognises(std::string_view line) const override { return Reader::recognises(line); }
  [[nodiscard]] bool is_guessed() const override {
    if constexpr (requires { Reader::kIsGuessed; }) return Reader::kIsGuessed;
    return true;
  }
  [[nodiscard]] bool is_document() const override {
    if constexpr (requires { Reader::kIsDocument; }) return Reader::kIsDocument;
    return false;
  }
  [[nodiscard]] bool recognises_folder(const std::string& path) const override {
    if constexpr (kHasFolders) return Reader::recognises_folder(path);
    return false;
  }
  [[nodiscard]] std::unique_ptr<RowReader> read(std::unique_ptr<LineReader> lines, const ReaderOptions& options) const override {
    return std::make_unique<Reader>(std::move(lines), options, own_);
  }
  [[nodiscard]] std::unique_ptr<RowReader> read_folder(const std::string& path, const ReaderOptions& options) const override {
    if constexpr (kHasFolders) return std::make_unique<Reader>(path, options, own_);
    return nullptr;
  }

 private:
  static constexpr bool kHasFolders = requires(const std::string& path) { Reader::recognises_folder(path); };
  typename Reader::Options own_;
};
#define KVLAB_REGISTER_TRACE(Reader, ...) \
  [[maybe_unused]] const bool Reader##_is_registered = TraceFormatRegistry::add<FormatOf<Reader>>(Card{__VA_ARGS__})

// All formats by name, with the options that one mapping gives.
class TraceFormats {
 public:
  explicit TraceFormats(Params& p);
  // Opens the trace `path`, a file or a folder, as format `name`; without a name by its first line, or its files. Refuses the keys of the
  // mapping that are options of other formats: they would do nothing.
  [[nodiscard]] std::unique_ptr<RowReader> open(const std::string& path, const std::string& name, const ReaderOptions& options) const;
  [[nodiscard]] std::unique_ptr<RowReader> read(std::unique_ptr<LineReader> lines, const std::string& name,
                                                const ReaderOptions& options) const {
    return formats_.at(name)->read(std::move(lines), options);
  }
  // The format called `name`; without a name that of the first line, which remains to be read. InputError where the lines are of another
  // format that the columns of this one would fit too, or look like none; the message names results of other tools as such.
  [[nodiscard]] std::string find(const std::string& name, LineReader& lines) const;

 private:
  // `head`: the begin of the file.
  [[nodiscard]] std::string sniff(LineReader& lines, std::string_view head) const;
  // "" where it is of none, or of several.
  [[nodiscard]] std::string format_of_folder(const std::string& path, const std::string& name) const;
  void refuse_options_of_others(const std::string& name) const;

  Params p_;
  std::map<std::string, std::unique_ptr<TraceFormat>> formats_;
};

// Opens a trace with the defaults of its format; an empty `format` is found out by looking at the first line.
std::unique_ptr<RowReader> open_trace(const std::string& path, const std::string& format = "", const ReaderOptions& options = {});

}  // namespace kvlab
