#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "traces/line_reader.h"
#include "traces/readers/readers.h"
#include "traces/trace.h"

namespace kvlab {

// A session, read as a whole, one request at a time.
class TurnQueue {
 public:
  void clear() {
    requests_.clear();
    hashes_.clear();
    given_ = 0;
  }
  // Copies the request, hashes and facts.
  void push(const TraceRequest& request);
  // The next request, with hashes and facts that are valid until clear(); read() reads another session, false at the end.
  template <class Read>
  bool next(TraceRequest& request, Read&& read) {
    while (!pop(request))
      if (!read()) return false;
    return true;
  }

 private:
  bool pop(TraceRequest& request);

  struct Kept {
    TraceRequest request;
    RequestFacts facts;
    std::size_t hashes_begin = 0, num_hashes = 0;
  };
  std::vector<Kept> requests_;
  std::vector<std::uint64_t> hashes_;
  std::size_t given_ = 0;
};

// Equal pieces in equal places give equal hashes.
class PieceHashes {
 public:
  // Different scopes never match.
  explicit PieceHashes(std::int32_t chunk_tokens, std::uint64_t scope = 0);
  // `tokens` tokens of content `id`.
  void append(std::uint64_t id, std::int32_t tokens);
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  [[nodiscard]] std::int32_t chunk_tokens() const { return chunk_tokens_; }

 private:
  std::int32_t chunk_tokens_;
  std::uint64_t chain_;
  std::int32_t filled_ = 0;  // in the current chunk
  std::vector<std::uint64_t> hashes_;
};

// Chains `ids`, one per `block` prompt tokens (the last may be partial), since some dialects name single blocks. Throws if their number
// does not fit. The request's hashes point into `ids`.
void set_chained_ids(const InputPlace& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request);

// Different scopes never match. 0: whole trace.
void chain_ids(std::span<std::uint64_t> ids, std::int32_t block, std::uint64_t scope = 0);

// Throws unless `count` fits the prompt's blocks, the last perhaps partial.
void check_id_count(const InputPlace& lines, std::string_view column, std::size_t count, std::int32_t block, std::int32_t prompt_tokens);

// Throws for more hashes than tokens, or only one of hashes and hash_tokens.
void check_hashes(const InputPlace& lines, const TraceRequest& request);

// Shared by mooncake formats. Times are milliseconds.
struct MooncakeRow {
  static constexpr std::int64_t kUnitNs = 1'000'000;
  enum Key : std::uint8_t { kTime, kCreated, kInput, kInputTokens, kOutput, kOutputTokens, kIds, kBlock, kSession, kDelay, kDelayMs };
  static constexpr std::array<std::string_view, 11> kKeys{"timestamp",     "created_time",  "input_length", "input_tokens",
                                                          "output_length", "output_tokens", "hash_ids",     "block_size",
                                                          "session_id",    "delay",         "delay_ms"};

  std::optional<std::int64_t> at_ns;  // from the start, or since 1970
  std::optional<Span> delay;
  std::int32_t prompt_tokens = 0, output_tokens = 0;
  std::int32_t block_size = 0;  // 0: absent
  std::int64_t session = -1;
  std::vector<std::uint64_t> ids;
  bool has_ids = false;

  void clear();
  void read_field(std::size_t key, JsonField& field);
  // A first line that may be such a row.
  static bool may_be(std::string_view line);
  // Throws without a length. Without prompt length, its ids count; asked_block as in block_of().
  void check_lengths(const InputPlace& lines, std::int32_t asked_block);
  // The row's, else `asked` (0: none). Throws for none or a difference.
  [[nodiscard]] std::int32_t block_of(const InputPlace& lines, std::int32_t asked) const;
};

struct MooncakeOptions {
  MooncakeOptions(Params& p, const std::string& format)
      : block_size(p.optional<std::int32_t>("block_size", 0, 1, 1 << 20, format + ": tokens per hash id; needed unless the rows say it")) {}
  std::int32_t block_size;  // 0: the rows'
};

class MooncakeReader : public JsonReader {
 protected:
  MooncakeReader(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const MooncakeOptions& own)
      : JsonReader(std::move(lines), options, "timestamp", MooncakeRow::kUnitNs), own_(own) {}
  // `keys`: Mooncake's, request_id, two unused, agents'. False at the end.
  bool next_row(std::span<const std::string_view> keys);
  void refuse_two_times() const;
  // All but prompt and content.
  void set_times(TraceRequest& request);

  MooncakeOptions own_;
  MooncakeRow row_;
};

// Mooncake's keys and `extra`.
template <std::size_t N>
constexpr auto with_mooncake_keys(const std::array<std::string_view, N>& extra) {
  std::array<std::string_view, MooncakeRow::kKeys.size() + N> keys{};
  std::size_t at = 0;
  for (const std::string_view key : MooncakeRow::kKeys) keys[at++] = key;
  for (const std::string_view key : extra) keys[at++] = key;
  return keys;
}

}  // namespace kvlab
