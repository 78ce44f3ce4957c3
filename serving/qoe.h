#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/int128.h"
#include "base/picoseconds.h"
#include "policies/request.h"
#include "serving/gap_watch.h"

namespace kvlab {

// The text begins `ttft` after arrival, with one token per `per_token`, the reading speed. A request's own ttft_slo_ms and tpot_slo_ms
// replace them.
struct ExpectedText {
  Span ttft{};
  Span per_token{1};  // above 0
};

// Quality of experience (Andes, Liu et al. 2024, arXiv:2404.16283): 1 - S_delay / S_whole, for the requests of one replica, exact in
// picoseconds. Token i is read from max(delivery, end of token i - 1). With l tokens, S_delay = per_token * sum of lags, S_whole = l^2
// per_token / 2 + l (last lag).
class QoeWatch {
 public:
  explicit QoeWatch(const ExpectedText* expected) : expected_(expected) {}
  [[nodiscard]] bool is_on() const { return expected_ != nullptr; }
  // r arrives in slot `id`.
  void begin(RequestId id, const RequestRecord& r);
  void add(RequestId id, Picoseconds at);
  // After add(id, at): tokens with these further gaps. O(log terms), but O(terms) if gaps become shorter.
  void add(RequestId id, Picoseconds at, const StretchGaps& gaps);
  // In (0, 1], over at least one token so far.
  [[nodiscard]] double qoe(RequestId id) const;

 private:
  // Picoseconds; may exceed the range of the clock.
  struct Reader {
    Int128 due = 0;        // time of the next token on the line
    Int128 per_token = 1;  // of the line
    Int128 lag = 0;        // of the latest token; at least 0
    Int128 lag_sum = 0;
    std::int64_t tokens = 0;
  };
  static void add_growing(Reader& reader, Int128 ahead, const StretchGaps& gaps);

  const ExpectedText* expected_;
  std::vector<Reader> readers_;  // by slot
};

}  // namespace kvlab
