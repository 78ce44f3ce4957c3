// Requests with images, between arrival and prefill replica.
#include <algorithm>

#include "base/checked_time.h"
#include "serving/fleet.h"
#include "traces/image_tokens.h"

namespace kvlab {

void Fleet::encode(const TraceRequest& request, Picoseconds at) {
  const RequestRecord record = arrival_record(request, to_time(at));
  encoders_.add(record, request, dispatch_->share_images({record, images_of(request), encoders_.waiting()}), at);
}

void Fleet::ask_for_prefill(std::uint32_t number, Picoseconds at) {
  if (dispatch_->reads_load()) catch_up_all(at);
  Encoders::Job& job = encoders_.job(number);
  job.is_held = true;
  HeldRequests::Held asked{{Stage::kPrefill, job.record, job.content, kNoReplica, dispatch_->next_key(Stage::kPrefill)}};
  asked.job = number;
  if (const auto held_for = place(asked, at)) hold(asked, *held_for, at);
}

// One call per encode replica. The request is received with its last embeddings.
void Fleet::send_embeddings(std::uint32_t number, const Placement& placement, bool prefill_only, Picoseconds at) {
  Encoders::Job& job = encoders_.job(number);
  job.is_held = false;
  job.placement = placement;
  job.rank = choose_rank(placement.replica, at);
  job.prefill_only = prefill_only;
  Picoseconds last = at;
  for (std::uint32_t i = 0; i < encoders_.size(); ++i) {
    if (job.share[i] == 0) continue;
    const std::int64_t bytes = job.share[i] * setup_.images.bytes_each;
    const Transfers::Times times = transfers_.begin({replicas_.num_replicas() + i, index(placement.replica), 1, bytes, 1, at, at, 1}, at);
    sink_.transfer({job.record.number, replicas_.num_ranks() + i, job.rank, job.share[i] * setup_.images.tokens_each, bytes, times.calls,
                    to_time(job.encoded), to_time(at), to_time(times.end)});
    last = std::max(last, times.end);
  }
  queue_.push(last, Phase::kArrive, EventKind::kEmbedded, job.rank, number);
}

void Fleet::receive_encoded(std::uint32_t number, Picoseconds at) {
  const Encoders::Job job = encoders_.take(number);
  encoders_.release_embeddings(job);
  receive(job.content, job.record.arrival, job.placement, job.rank, at, job.prefill_only);
}

}  // namespace kvlab
