#include "traces/image_tokens.h"

#include <fmt/format.h>

#include "base/error.h"
#include "traces/numbers.h"

namespace kvlab {

bool ImageTokens::next(TraceRequest& request) {
  if (!source_->next(request)) return false;
  const std::uint64_t number = num_given_++;
  const std::int64_t images = images_of(request);
  if (images == 0) return true;
  if (tokens_each_ == 0)
    throw InputError(
        fmt::format("request {} of the trace (counted from 0) has {} images, but the experiment has no key 'images': add 'images: "
                    "{{tokens_each: 576, encoder: clip-vit-l-14-336}}' with the figures of its model (docs/pools.md)",
                    number, images));
  const std::int64_t tokens = request.prompt_tokens + images * tokens_each_;
  if (tokens > kMaxTokens)
    throw InputError(fmt::format("request {} of the trace (counted from 0): {} images of {} tokens make a prompt of {}, more than {}",
                                 number, images, tokens_each_, tokens, kMaxTokens));
  if (request.hash_tokens > 0) {
    const auto in_text = static_cast<std::size_t>(request.prompt_tokens / request.hash_tokens);
    if (in_text < request.hashes.size()) request.hashes = request.hashes.first(in_text);
    if (request.hashes.empty()) request.hash_tokens = 0;
  }
  request.prompt_tokens = static_cast<std::int32_t>(tokens);
  return true;
}

}  // namespace kvlab
