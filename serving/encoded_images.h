#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ceil_div.h"
#include "policies/request.h"

namespace kvlab {

// Images that a replica encodes itself. Their tokens are the last of a prompt.
class EncodedImages {
 public:
  // image_tokens: per image; 0: none is encoded here.
  explicit EncodedImages(std::int32_t image_tokens) : image_tokens_(image_tokens) {}
  [[nodiscard]] bool is_on() const { return image_tokens_ > 0; }

  // Marks as encoded, and counts, the images to encode before `tokens` more of r: those that begin there, and one partly in the prefix
  // cache.
  std::int32_t take(RequestId id, const Request& r, std::int32_t tokens) {
    const std::int64_t images = r.facts == nullptr ? 0 : r.facts->images;
    if (images == 0) return 0;
    if (encoded_.size() <= index(id)) encoded_.resize(index(id) + 1);
    std::int32_t& encoded = encoded_[index(id)];
    if (encoded == images) return 0;
    const std::int64_t computed = r.computed_tokens - (r.prompt_tokens - images * image_tokens_);  // of the images
    const auto within = [&](std::int64_t n) { return static_cast<std::int32_t>(std::clamp<std::int64_t>(n, 0, images)); };
    const std::int32_t before = std::max(encoded, within(computed / image_tokens_));
    encoded = std::max(before, within(ceil_div(std::max<std::int64_t>(0, computed + tokens), image_tokens_)));
    return encoded - before;
  }
  // The request is computed again, or has left its slot.
  void forget(RequestId id) {
    if (index(id) < encoded_.size()) encoded_[index(id)] = 0;
  }

 private:
  std::int64_t image_tokens_;
  std::vector<std::int32_t> encoded_;  // by slot
};

}  // namespace kvlab
