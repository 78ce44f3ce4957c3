#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/config/registry.h"
#include "traces/line_reader.h"
#include "traces/row_reader.h"

namespace kvlab {

class TraceFormat {
 public:
  virtual ~TraceFormat() = default;
  // `line`: the first. The first format by name wins: bailian before mooncake.
  [[nodiscard]] virtual bool recognises(std::string_view line) const = 0;
  [[nodiscard]] virtual bool is_guessed() const { return true; }
  // Not lines; recognises() gets up to 256 KiB.
  [[nodiscard]] virtual bool is_document() const { return false; }
  [[nodiscard]] virtual bool recognises_folder(const std::string& /*path*/) const { return false; }
  [[nodiscard]] virtual std::unique_ptr<RowReader> read(std::unique_ptr<LineReader> lines, const ReaderOptions& options) const = 0;
  // Null: no folders.
  [[nodiscard]] virtual std::unique_ptr<RowReader> read_folder(const std::string& /*path*/, const ReaderOptions& /*options*/) const {
    return nullptr;
  }
};

using TraceFormatRegistry = Registry<TraceFormat>;

// For a `Reader` with Options, made of Params; recognises(line); a constructor from lines, common options and its own. Optional:
// kIsGuessed, kIsDocument; recognises_folder(path) and a constructor from the path. Its file in traces/readers/ ends in:
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
