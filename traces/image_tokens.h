#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "traces/numbers.h"
#include "traces/trace.h"

namespace kvlab {

// 0 without such a column.
inline std::int32_t images_of(const TraceRequest& request) { return request.facts == nullptr ? 0 : request.facts->images; }

// Adds image tokens after the text. Later hashes are dropped: images and generated tokens are never shared.
class ImageTokens final : public TraceSource {
 public:
  // tokens_each: 0: unknown, images throw InputError.
  ImageTokens(std::unique_ptr<TraceSource> source, std::int32_t tokens_each) : source_(std::move(source)), tokens_each_(tokens_each) {}

  // Throws InputError for too long prompts.
  bool next(TraceRequest& request) override {
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
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] ClosedLoop closed_loop() const override { return source_->closed_loop(); }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  std::unique_ptr<TraceSource> source_;
  std::int32_t tokens_each_;
  std::uint64_t num_given_ = 0;
};

}  // namespace kvlab
