#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/int128.h"
#include "base/picoseconds.h"
#include "policies/request.h"
#include "serving/gap_watch.h"

namespace kvlab {

// The text that a user expects: it begins `ttft` after arrival and continues at one token per `per_token`, which is also as fast as the
// user reads. A request's own ttft_slo_ms and tpot_slo_ms take their places.
struct ExpectedText {
  Span ttft{};
  Span per_token{1};  // above 0
};

// Quality of experience (Andes, Liu et al. 2024, arXiv:2404.16283): 1 - S_delay / S_whole. S_delay is the area by which the text that was
// read lags the expected line, and S_whole the area below that line until the whole answer is read. Token i (from 0) is read from
// max(its delivery, the end of token i - 1) on, so it lags by the running maximum of (delivery - ttft - i per_token), at least 0. With l
// tokens S_delay = per-token sum of lags, S_whole = l^2 per_token / 2 + l (last lag).
//
// Follows the delivery of the tokens of one replica's requests, exact in picoseconds.
class QoeWatch {
 public:
  explicit QoeWatch(const ExpectedText* expected) : expected_(expected) {}
  // expected: not null.
  [[nodiscard]] bool is_on() const { return expected_ != nullptr; }
  // r arrives in slot `id`.
  void begin(RequestId id, const RequestRecord& r);
  // Its next token is delivered.
  void add(RequestId id, Picoseconds at);
  // After add(id, at): the tokens after it, with those gaps. O(log terms), but O(terms) where gaps become shorter.
  void add(RequestId id, Picoseconds at, const StretchGaps& gaps);
  // Quality of experience of the tokens so far, in (0, 1]; there is one or more.
  [[nodiscard]] double qoe(RequestId id) const;

 private:
  // In picoseconds, of times after the end of the clock, too.
  struct Reader {
    Int128 due = 0;        // when the line reaches the next token
    Int128 per_token = 1;  // of the line
    Int128 lag = 0;        // of the latest token; at least 0
    Int128 lag_sum = 0;    // over the tokens
    std::int64_t tokens = 0;
  };
  static void add_growing(Reader& reader, Int128 ahead, const StretchGaps& gaps);

  const ExpectedText* expected_;
  std::vector<Reader> readers_;  // by slot
};

}  // namespace kvlab
