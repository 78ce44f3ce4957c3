#include "traces/readers/hashed_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ceil_div.h"
#include "base/hash.h"

namespace kvlab {

void TurnQueue::push(const TraceRequest& request) {
  Kept kept;
  kept.request = request;
  if (request.facts != nullptr) kept.facts = *request.facts;
  kept.hashes_begin = hashes_.size();
  kept.num_hashes = request.hashes.size();
  hashes_.insert(hashes_.end(), request.hashes.begin(), request.hashes.end());
  requests_.push_back(kept);
}

bool TurnQueue::pop(TraceRequest& request) {
  if (given_ == requests_.size()) return false;
  const Kept& kept = requests_[given_++];
  request = kept.request;
  request.hashes = std::span(hashes_).subspan(kept.hashes_begin, kept.num_hashes);
  if (request.facts != nullptr) request.facts = &kept.facts;
  return true;
}

PieceHashes::PieceHashes(std::int32_t chunk_tokens, std::uint64_t scope)
    : chunk_tokens_(chunk_tokens), chain_(hash_combine(mix64(static_cast<std::uint64_t>(chunk_tokens)), scope)) {}

void PieceHashes::append(std::uint64_t id, std::int32_t tokens) {
  for (std::int32_t from = 0; from < tokens;) {
    const std::int32_t taken = std::min(tokens - from, chunk_tokens_ - filled_);
    const bool is_whole = from == 0 && taken == tokens;
    chain_ = hash_combine(chain_, id);
    if (!is_whole) chain_ = hash_combine(chain_, static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(taken));
    from += taken;
    filled_ += taken;
    if (filled_ < chunk_tokens_) continue;
    hashes_.push_back(chain_);
    filled_ = 0;
  }
}

void check_id_count(const InputPlace& lines, std::string_view column, std::size_t count, std::int32_t block, std::int32_t prompt_tokens) {
  const auto fewest = static_cast<std::size_t>(prompt_tokens / block);
  const std::size_t most = fewest + (prompt_tokens % block != 0 ? 1 : 0);
  if (count < fewest || count > most) {
    const std::string doubt = column == "hash_ids" ? fmt::format("; is 'block_size: {}' right?", block) : "";
    lines.fail(column, fmt::format("{} ids, but {} tokens in blocks of {} need {}{}", count, prompt_tokens, block, most, doubt));
  }
}

void chain_ids(std::span<std::uint64_t> ids, std::int32_t block, std::uint64_t scope) {
  std::uint64_t chain = mix64(static_cast<std::uint64_t>(block));
  if (scope != 0) chain = hash_combine(chain, scope);
  for (std::uint64_t& id : ids) id = chain = hash_combine(chain, id);
}

void set_chained_ids(const InputPlace& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request) {
  check_id_count(lines, "hash_ids", ids.size(), block, request.prompt_tokens);
  chain_ids(ids, block);
  request.hash_tokens = ids.empty() ? 0 : block;
  request.hashes = ids;
}

void check_hashes(const InputPlace& lines, const TraceRequest& request) {
  if (request.hashes.empty() != (request.hash_tokens == 0))
    lines.fail("hash_tokens", "hashes and hash_tokens go together: give both or neither");
  const std::int64_t tokens = std::int64_t{request.prompt_tokens} + request.output_tokens;
  const auto most = static_cast<std::size_t>(request.hashes.empty() ? 0 : ceil_div(tokens, request.hash_tokens));
  if (request.hashes.size() > most) {
    lines.fail("hashes", fmt::format("{} hashes of {} tokens each, but prompt and output have {} tokens", request.hashes.size(),
                                     request.hash_tokens, tokens));
  }
}

void MooncakeRow::clear() {
  std::vector<std::uint64_t> kept = std::move(ids);
  *this = MooncakeRow{};
  ids = std::move(kept);
  ids.clear();
}

void MooncakeRow::read_field(std::size_t key, JsonField& field) {
  const auto only_once = [&](bool is_set) {
    if (is_set) field.fail("the row has this column under another name as well");
  };
  if (field.is_null()) return;  // as if absent
  if (key == kTime || key == kCreated) {
    only_once(at_ns.has_value());
    at_ns = field.time_or_instant_ns(kUnitNs);
  } else if (key == kInput || key == kInputTokens) {
    only_once(prompt_tokens > 0);
    prompt_tokens = field.prompt_tokens();
  } else if (key == kOutput || key == kOutputTokens) {
    only_once(output_tokens > 0);
    output_tokens = field.output_tokens();
  } else if (key == kDelay || key == kDelayMs) {
    only_once(delay.has_value());
    delay = field.time(kUnitNs);
  }
  if (key == kIds) field.id_list(ids), has_ids = !ids.empty();
  if (key == kBlock) block_size = static_cast<std::int32_t>(field.integer(1, kMaxTokens));
  if (key == kSession) session = field.session();
}

bool MooncakeRow::may_be(std::string_view line) {
  if (object_has(line, "input_length") || object_has(line, "input_tokens")) return true;
  return object_has(line, "hash_ids") && (object_has(line, "output_length") || object_has(line, "output_tokens"));
}

void MooncakeRow::check_lengths(const InputPlace& lines, std::int32_t asked_block) {
  if (prompt_tokens == 0 && has_ids) {
    const std::int64_t tokens = static_cast<std::int64_t>(ids.size()) * block_of(lines, asked_block);
    if (tokens > kMaxTokens) lines.fail("hash_ids", fmt::format("{} ids are more than {} tokens", ids.size(), kMaxTokens));
    prompt_tokens = static_cast<std::int32_t>(tokens);
  }
  if (prompt_tokens == 0) fail_missing_key(lines, "input_length");
  if (output_tokens == 0) fail_missing_key(lines, "output_length");
}

std::int32_t MooncakeRow::block_of(const InputPlace& lines, std::int32_t asked) const {
  const std::int32_t block = block_size > 0 ? block_size : asked;
  if (block == 0) {
    lines.fail("hash_ids",
               "tokens per hash id unknown: set 'block_size' (512 in the traces that Mooncake published; 64, 256 and others occur)");
  }
  if (asked > 0 && block_size > 0 && block_size != asked)
    lines.fail("block_size", fmt::format("{} in the row, but 'block_size: {}' was asked for", block_size, asked));
  return block;
}

bool MooncakeReader::next_row(std::span<const std::string_view> keys) {
  constexpr std::size_t kRequestId = MooncakeRow::kKeys.size(), kFirstOfAgents = kRequestId + 3;
  std::optional<std::int64_t> id;
  const auto read_field = [&](std::size_t key, JsonField field) {
    if (key >= kFirstOfAgents) field.fail("rows of agents have this column; set 'format: agentic_mooncake'");
    if (key != kRequestId) return row_.read_field(key, field);
    if (!field.is_null()) id = field.session();
  };
  do {
    row_.clear();
    id.reset();
    if (!rows_.next(keys, read_field)) return false;
  } while (id && is_repeated(*id));
  row_.check_lengths(lines(), own_.block_size);
  return true;
}

void MooncakeReader::refuse_two_times() const {
  if (row_.delay && row_.at_ns) lines().fail("delay", "a row has either a timestamp or a delay after the turn before it");
}

void MooncakeReader::set_times(TraceRequest& request) {
  request.output_tokens = row_.output_tokens;
  request.session = row_.session;
  request.is_follow_up = row_.delay.has_value();
  if (row_.delay)
    request.delay = *row_.delay;
  else
    request.arrival = row_.at_ns ? time_of(*row_.at_ns) : arrival_of_row_without();
}

}  // namespace kvlab
