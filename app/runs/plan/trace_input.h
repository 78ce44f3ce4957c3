#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/config/params.h"
#include "traces/trace.h"

namespace kvlab {

// Scales arrivals by `factor`. Follow-ups keep their delays.
class RescaledTrace final : public TraceSource {
 public:
  RescaledTrace(std::unique_ptr<TraceSource> source, double factor) : source_(std::move(source)), factor_(factor) {}
  bool next(TraceRequest& request) override;
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  std::unique_ptr<TraceSource> source_;
  double factor_;
};

// A closed loop of `users`, without the trace's arrivals but with its think times.
class UserTrace final : public TraceSource {
 public:
  UserTrace(std::unique_ptr<TraceSource> source, std::int32_t users, Span ramp) : source_(std::move(source)), users_(users), ramp_(ramp) {}
  bool next(TraceRequest& request) override { return source_->next(request); }
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] ClosedLoop closed_loop() const override {
    ClosedLoop loop = source_->closed_loop();
    loop.concurrency = users_;
    loop.ramp = ramp_;
    return loop;
  }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  std::unique_ptr<TraceSource> source_;
  std::int32_t users_;
  Span ramp_;
};

// Per second over the span of arrivals, of the first `limit` requests (0: all). Throws InputError without two distinct arrivals.
double mean_rate(TraceSource& source, std::uint64_t limit);

using OpenTrace = std::function<std::unique_ptr<TraceSource>()>;

struct TraceInput {
  OpenTrace open;
  std::function<std::unique_ptr<TraceSource>(std::uint64_t seed)> open_with;  // as drawn by another seed
  std::string remark;                                                         // for the result's note
  bool wants_perfetto = false;
  bool keeps_summary = false;  // no tables of requests or samples
};

// Reads `trace`, `output`, and the first request, to find errors early.
TraceInput read_trace(Params& p, std::uint64_t seed);
// A pipe can only be read once.
void refuse_pipe(const Params& p, const std::string& key);

}  // namespace kvlab
