#include "serving/encoders.h"

#include <algorithm>
#include <utility>

#include "base/checked_time.h"

namespace kvlab {

Encoders::Encoders(const ImageSetup& setup, EventQueue& queue, std::uint32_t first_rank)
    : setup_(setup), queue_(queue), first_rank_(first_rank) {
  for (std::uint32_t p = 0; p < setup.pools.size(); ++p)
    for (std::uint32_t i = 0; i < setup.pools[p].num_replicas; ++i) replicas_.push_back({p, {}, {}, 0, {}});
  waiting_.resize(replicas_.size());
}

void Encoders::add(const RequestRecord& record, const TraceRequest& content, std::span<const std::int32_t> share, Picoseconds at) {
  const std::uint32_t number = next_job_++;
  Job& job = jobs_[number];
  job.record = record;
  job.content = content;
  job.share.assign(share.begin(), share.end());
  for (std::uint32_t i = 0; i < share.size(); ++i) {
    if (share[i] == 0) continue;
    job.left += share[i];
    waiting_[i] += share[i];
    replicas_[i].queue.push_back({number, share[i]});
    if (replicas_[i].pass.empty()) begin_pass(i, at);
  }
}

void Encoders::begin_pass(std::uint32_t number, Picoseconds at) {
  Replica& replica = replicas_[number];
  const EncodePoolSetup& pool = setup_.pools[replica.pool];
  std::int32_t images = 0;
  while (!replica.queue.empty() && images < pool.batch_images) {
    Piece& first = replica.queue.front();
    const std::int32_t taken = std::min(first.images, pool.batch_images - images);
    replica.pass.push_back({first.job, taken});
    images += taken;
    first.images -= taken;
    if (first.images == 0) replica.queue.pop_front();
  }
  if (images == 0) return;
  const EncodeWork work = pool.work(images);
  EncodeTotals& totals = replica.totals;
  totals.busy += work.time.count();
  totals.at_peak += work.at_peak.count();
  totals.flops += work.flops;
  totals.bytes += work.bytes;
  totals.images += images;
  ++totals.passes;
  const Picoseconds end = add_time(at, work.time, "images are encoded later than that");
  queue_.push(end, Phase::kComplete, EventKind::kEncodeEnd, first_rank_ + number, number);
}

void Encoders::end_pass(const Event& event) {
  Replica& replica = replicas_[event.subject];
  for (const Piece& piece : replica.pass) {
    waiting_[event.subject] -= piece.images;
    replica.held_images += piece.images;
    Job& job = jobs_.at(piece.job);
    job.left -= piece.images;
    if (job.left > 0) continue;
    job.encoded = event.at;
    queue_.push(event.at, Phase::kArrive, EventKind::kEncoded, event.replica, piece.job);
  }
  replica.totals.peak_held_bytes = std::max(replica.totals.peak_held_bytes, replica.held_images * setup_.bytes_each);
  replica.pass.clear();
  begin_pass(event.subject, event.at);
}

void Encoders::release_embeddings(const Job& job) {
  for (std::size_t i = 0; i < job.share.size(); ++i) replicas_[i].held_images -= job.share[i];
}

Encoders::Job Encoders::take(std::uint32_t number) {
  const auto found = jobs_.find(number);
  Job job = std::move(found->second);
  jobs_.erase(found);
  return job;
}

void Encoders::drain(std::vector<RequestRecord>& unfinished) const {
  for (const auto& [number, job] : jobs_)
    if (!job.is_held) unfinished.push_back(job.record);
}

std::vector<EncodeTotals> Encoders::totals() const {
  std::vector<EncodeTotals> all(setup_.pools.size());
  for (const Replica& replica : replicas_) {
    EncodeTotals& sum = all[replica.pool];
    const EncodeTotals& own = replica.totals;
    sum.busy += own.busy;
    sum.at_peak += own.at_peak;
    sum.passes += own.passes;
    sum.images += own.images;
    sum.flops += own.flops;
    sum.bytes += own.bytes;
    sum.peak_held_bytes = std::max(sum.peak_held_bytes, own.peak_held_bytes);
  }
  return all;
}

}  // namespace kvlab
