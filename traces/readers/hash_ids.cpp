#include "traces/readers/hash_ids.h"

#include <fmt/format.h>

#include "base/ceil_div.h"
#include "base/hash.h"

namespace kvlab {

void set_chained_ids(const LineReader& lines, std::vector<std::uint64_t>& ids, std::int32_t block, TraceRequest& request) {
  const auto fewest = static_cast<std::size_t>(request.prompt_tokens / block);
  const std::size_t most = fewest + (request.prompt_tokens % block != 0 ? 1 : 0);
  if (ids.size() < fewest || ids.size() > most) {
    lines.fail("hash_ids", fmt::format("{} ids, but {} tokens in blocks of {} need {}; is 'block_size: {}' right?", ids.size(),
                                       request.prompt_tokens, block, most, block));
  }
  std::uint64_t chain = mix64(static_cast<std::uint64_t>(block));
  for (std::uint64_t& id : ids) id = chain = hash_combine(chain, id);
  request.hash_tokens = ids.empty() ? 0 : block;
  request.hashes = ids;
}

void check_hashes(const LineReader& lines, const TraceRequest& request) {
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
