#include <array>
#include <charconv>
#include <optional>

#include "base/hash.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// LMCache's lookup log (github.com/LMCache/LMCache), JSON lines: seconds, a prefix hash per full prompt chunk. No output lengths.
class LmCache final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : output_tokens(
              p.optional<std::int32_t>("output_tokens", 1, 1, 1 << 29, "lmcache: output tokens of every request; the log has none")) {}
    std::int32_t output_tokens;
  };
  static bool recognises(std::string_view line) { return object_has(line, "chunk_hashes"); }
  LmCache(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "timestamp", 0), own_(own) {}
  [[nodiscard]] std::string origin() const override {
    return own_.output_tokens == 1 ? "the log has no output lengths: every request emits 1 token; set 'output_tokens'" : "";
  }

 private:
  enum Key : std::uint8_t { kTime, kChunk, kLength, kHashes, kRequestId };
  static constexpr std::array<std::string_view, 8> kKeys{"timestamp",  "chunk_size", "seq_len", "chunk_hashes",
                                                         "request_id", "model_name", "dtypes",  "shapes"};

  bool read_row(TraceRequest& request) override {
    std::int32_t chunk = 0;
    bool has_time = false;
    bool has_hashes = false;
    std::optional<std::int64_t> id;
    const auto read_field = [&](std::size_t key, JsonField field) {
      if (key == kTime) has_time = true, request.arrival = since_first(field.instant_ns(kSecondNs));
      if (key == kChunk) chunk = static_cast<std::int32_t>(field.integer(1, kMaxTokens));
      if (key == kRequestId && !field.is_null()) id = field.session();
      if (key == kLength) request.prompt_tokens = field.prompt_tokens();
      if (key != kHashes) return;
      has_hashes = true;
      field.each_name(
          [&](const std::string& name, bool is_text) { hashes_.push_back(is_text ? hash_of(field, name) : number_of(field, name)); });
    };
    do {
      id.reset();
      hashes_.clear();
      chunk = 0, has_time = has_hashes = false;
      request = TraceRequest{};
      if (!rows_.next(kKeys, read_field)) return false;
    } while (id && is_repeated(*id));
    if (chunk == 0) fail_missing_key(lines(), "chunk_size");
    if (request.prompt_tokens == 0) fail_missing_key(lines(), "seq_len");
    if (!has_hashes) fail_missing_key(lines(), "chunk_hashes");
    if (!has_time) request.arrival = arrival_of_row_without();
    check_chunk_count(chunk, request.prompt_tokens);
    request.output_tokens = own_.output_tokens;
    request.hash_tokens = hashes_.empty() ? 0 : chunk;
    request.hashes = hashes_;
    return true;
  }

  void check_chunk_count(std::int32_t chunk, std::int32_t tokens) const {
    const auto full = static_cast<std::size_t>(tokens / chunk);
    if (hashes_.size() != full)
      lines().fail("chunk_hashes", std::to_string(hashes_.size()) + " hashes, but " + std::to_string(tokens) + " tokens have " +
                                       std::to_string(full) + " full chunks of " + std::to_string(chunk));
  }

  // A signed or unsigned 64-bit whole number.
  static std::uint64_t number_of(const JsonField& field, std::string_view text) {
    std::int64_t with_sign = 0;
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    if (text.starts_with('-'))
      if (const auto [at, error] = std::from_chars(text.data(), end, with_sign); error == std::errc{} && at == end)
        return static_cast<std::uint64_t>(with_sign);
    if (const auto [at, error] = std::from_chars(text.data(), end, value); error == std::errc{} && at == end) return value;
    field.fail(quoted(text) + " in the list is no number of 64 bits");
  }

  // Optional sign, "0x", hexadecimal digits; beyond 64 bits hashed.
  static std::uint64_t hash_of(const JsonField& field, std::string_view text) {
    constexpr std::size_t kDigitsOf64Bits = 16;
    const bool is_negative = text.starts_with('-');
    std::string_view digits = is_negative ? text.substr(1) : text;
    if (digits.starts_with("0x") || digits.starts_with("0X")) digits.remove_prefix(2);
    const std::size_t count = digits.size();
    std::uint64_t hash = 0;
    while (!digits.empty()) {
      const std::string_view part = digits.substr(0, kDigitsOf64Bits);
      std::uint64_t value = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value, 16);
      if (error != std::errc{} || end != part.data() + part.size()) break;
      hash = count > kDigitsOf64Bits ? hash_combine(hash, value) : value;
      digits.remove_prefix(part.size());
    }
    if (count == 0 || !digits.empty()) field.fail(quoted(text) + " in the list is no hexadecimal number like \"0x1f2e\"");
    return is_negative ? 0 - hash : hash;
  }

  Options own_;
  std::vector<std::uint64_t> hashes_;
};

KVLAB_REGISTER_TRACE(LmCache, "lmcache", R"({"timestamp":...,"chunk_size":256,"seq_len":...,"chunk_hashes":["0x...",...]})",
                     "LMCache, log of lookups");

}  // namespace

}  // namespace kvlab
