#include "traces/readers/hash_ids.h"

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

}  // namespace kvlab
