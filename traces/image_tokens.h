#pragma once

#include <cstdint>
#include <memory>
#include <string>

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
  bool next(TraceRequest& request) override;
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
