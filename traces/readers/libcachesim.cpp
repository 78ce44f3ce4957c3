#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// libCacheSim's cache traces (github.com/1a1a11a/libCacheSim), for hit ratios: an access is a request of one block. Sizes and next accesses
// are unused.
struct ObjectOptions {
  ObjectOptions(Params& p, const std::string& format)
      : tokens(p.optional<std::int32_t>("object_tokens", 16, 1, 1 << 20,
                                        format + ": tokens of an object; as 'block_tokens' of the experiment, so that it is one block")) {}
  std::int32_t tokens;
};

constexpr const char* kObjectsOrigin = "objects of a cache trace: each is one block, whatever its size, and emits 1 token";

void set_object(std::uint64_t id, std::int32_t tokens, std::uint64_t& hash, TraceRequest& request) {
  hash = mix64(id);
  request.prompt_tokens = tokens;
  request.output_tokens = 1;
  request.hash_tokens = tokens;
  request.hashes = {&hash, 1};
}

// oracleGeneral: packed little-endian uint32 seconds, uint64 object, uint32 size, int64 next access.
class OracleGeneral final : public RowReader {
 public:
  struct Options : ObjectOptions {
    explicit Options(Params& p) : ObjectOptions(p, "oracle_general") {}
  };
  static constexpr bool kIsGuessed = false;
  static constexpr bool kIsDocument = true;
  static bool recognises(std::string_view /*begin*/) { return true; }
  OracleGeneral(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : RowReader(options, "clock_time", 0), own_(own), place_(std::move(lines)) {}

 private:
  static constexpr std::size_t kRecordBytes = 24;

  // Counts records, from 1.
  class Place final : public InputPlace {
   public:
    explicit Place(std::unique_ptr<LineReader> lines) : bytes_(std::move(lines)) { bytes_->keep_mark(); }
    [[nodiscard]] const std::string& name() const override { return bytes_->name(); }
    [[nodiscard]] std::int64_t line_number() const override { return number_; }
    bool next(std::array<char, kRecordBytes>& record) {
      std::size_t filled = 0;
      while (filled < kRecordBytes) {
        if (unread_.empty()) unread_ = bytes_->next_bytes();
        if (unread_.empty()) break;
        const std::size_t taken = std::min(unread_.size(), kRecordBytes - filled);
        std::memcpy(record.data() + filled, unread_.data(), taken);
        unread_.remove_prefix(taken);
        filled += taken;
      }
      if (filled == 0) return false;
      ++number_;
      const auto is_text = [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t'; };
      if (number_ == 1 && std::all_of(record.begin(), record.begin() + static_cast<std::ptrdiff_t>(filled), is_text))
        fail("the record is a text; 'format: libcachesim_csv' reads objects of a CSV file");
      if (filled < kRecordBytes)
        fail("the record has " + std::to_string(filled) + " bytes of 24: the file is cut short, or of another format");
      return true;
    }

   private:
    std::unique_ptr<LineReader> bytes_;
    std::string_view unread_;
    std::int64_t number_ = 0;
  };

  [[nodiscard]] const InputPlace& lines() const override { return place_; }
  [[nodiscard]] std::string origin() const override { return kObjectsOrigin; }

  template <class T>
  static T value_at(const std::array<char, kRecordBytes>& record, std::size_t offset) {
    T value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) value = static_cast<T>(value << 8 | static_cast<unsigned char>(record[offset + i]));
    return value;
  }

  bool read_row(TraceRequest& request) override {
    std::array<char, kRecordBytes> record{};
    if (!place_.next(record)) return false;
    request.arrival = since_first(std::int64_t{value_at<std::uint32_t>(record, 0)} * kSecondNs);
    set_object(value_at<std::uint64_t>(record, 4), own_.tokens, hash_, request);
    return true;
  }

  Options own_;
  Place place_;
  std::uint64_t hash_ = 0;
};

KVLAB_REGISTER_TRACE(OracleGeneral, "oracle_general", "records of 24 bytes: uint32 time, uint64 object, uint32 size, int64 next access",
                     "libCacheSim");

// Owns the column names of a CsvReader.
struct ObjectColumns {
  std::string time, object, size;
  std::array<CsvColumn, 3> columns;
};

// CSV with a header; column names are configurable.
class LibCacheSimCsv final : private ObjectColumns, public CsvReader {
 public:
  struct Options : ObjectOptions {
    explicit Options(Params& p)
        : ObjectOptions(p, "libcachesim_csv"),
          time(p.text("time_column", "clock_time", "libcachesim_csv: header of the column of times, in seconds")),
          object(p.text("object_column", "obj_id", "libcachesim_csv: header of the column of objects: numbers or texts")),
          size(p.text("size_column", "obj_size", "libcachesim_csv: header of the column of sizes; it may be missing")) {}
    std::string time, object, size;
  };
  static bool recognises(std::string_view line) { return header_names(line, "obj_id"); }
  LibCacheSimCsv(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : ObjectColumns{own.time, own.object, own.size, {}}, CsvReader(std::move(lines), with_next_access(options), named(), 0), own_(own) {}

 private:
  enum Column : std::uint8_t { kTime, kObject, kSize };

  std::span<const CsvColumn> named() {
    columns = {{{time, CsvColumn::Need::kOptional}, {object, CsvColumn::Need::kRequired}, {size, CsvColumn::Need::kOptional}}};
    return columns;
  }
  static ReaderOptions with_next_access(ReaderOptions options) {
    options.ignore_columns.emplace_back("next_access_vtime");
    return options;
  }
  [[nodiscard]] std::string origin() const override { return kObjectsOrigin; }

  bool read_row(TraceRequest& request) override {
    if (!rows_.next()) return false;
    std::int64_t instant = 0;
    if (rows_.has(kTime)) {
      if (!parse_instant_ns(rows_.text(kTime), kSecondNs, instant))
        rows_.fail(kTime, kvlab::quoted(rows_.text(kTime)) + " is not a time: expected seconds, 0 or more");
      request.arrival = since_first(instant);
    }
    if (rows_.text(kObject).empty()) rows_.fail(kObject, "nothing found; expected the name of an object");
    set_object(static_cast<std::uint64_t>(number_of_name(rows_.text(kObject))), own_.tokens, hash_, request);
    return true;
  }

  Options own_;
  std::uint64_t hash_ = 0;
};

KVLAB_REGISTER_TRACE(LibCacheSimCsv, "libcachesim_csv", "clock_time,obj_id,obj_size[,next_access_vtime]; 'object_column' etc. name others",
                     "libCacheSim");

}  // namespace

}  // namespace kvlab
