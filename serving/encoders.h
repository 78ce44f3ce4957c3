#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/int128.h"
#include "policies/dispatcher/dispatcher.h"
#include "serving/event_queue.h"
#include "serving/link.h"
#include "serving/metrics.h"
#include "traces/trace.h"

namespace kvlab {

struct EncodeWork {
  Picoseconds time{}, at_peak{};  // at_peak: at the GPU's peak rates (sim/cost_totals.h)
  std::int64_t flops = 0, bytes = 0;
};

// Replicas that only encode images, without weights or KV of the language model (EPD, Singh et al. 2025, arXiv:2501.05460).
struct EncodePoolSetup {
  std::string name;
  std::uint32_t num_replicas = 1;
  std::int32_t batch_images = 1;  // maximum in one pass
  LinkSetup link;                 // to other replicas, one direction
  std::function<EncodeWork(std::int64_t images)> work;
};

struct ImageSetup {
  std::int32_t tokens_each = 0;        // prompt tokens per image, after the text; 0: images are ignored
  std::int64_t bytes_each = 0;         // embeddings of one image
  std::vector<EncodePoolSetup> pools;  // empty: prefill replicas encode, in the step of the first token
};

struct EncodeTotals {
  Int128 busy = 0, at_peak = 0;  // replica-picoseconds
  std::uint64_t passes = 0;
  std::int64_t images = 0, flops = 0, bytes = 0;
  std::int64_t peak_held_bytes = 0;  // embeddings on one replica before a prefill replica takes them
};

// First come, first served per replica. A request is encoded with its last image; embeddings stay on their replicas until sent.
class Encoders {
 public:
  // first_rank: number of the first encode replica, after all ranks.
  Encoders(const ImageSetup& setup, EventQueue& queue, std::uint32_t first_rank);

  [[nodiscard]] bool is_empty() const { return replicas_.empty(); }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(replicas_.size()); }
  // Waiting or current images by replica.
  [[nodiscard]] const std::vector<std::int64_t>& waiting() const { return waiting_; }

  // Between arrival and prefill replica.
  struct Job {
    RequestRecord record;
    TraceRequest content;
    std::vector<std::int32_t> share;  // images by replica
    std::int64_t left = 0;            // not encoded
    Picoseconds encoded{};
    bool is_held = false;  // encoded; held by the dispatcher
    // After its embeddings are sent: the dispatcher's choice.
    Placement placement;
    std::uint32_t rank = 0;
    bool prefill_only = false;
  };
  // share[i]: images for replica i.
  void add(const RequestRecord& record, const TraceRequest& content, std::span<const std::int32_t> share, Picoseconds at);
  // Finished jobs get a kEncoded event at this instant.
  void end_pass(const Event& event);
  Job& job(std::uint32_t number) { return jobs_.at(number); }
  void release_embeddings(const Job& job);
  Job take(std::uint32_t number);

  // Adds requests that no dispatcher holds.
  void drain(std::vector<RequestRecord>& unfinished) const;
  // By pool.
  [[nodiscard]] std::vector<EncodeTotals> totals() const;

 private:
  struct Piece {
    std::uint32_t job = 0;
    std::int32_t images = 0;
  };
  struct Replica {
    std::uint32_t pool = 0;
    std::deque<Piece> queue;
    std::vector<Piece> pass;
    std::int64_t held_images = 0;
    EncodeTotals totals;
  };
  void begin_pass(std::uint32_t replica, Picoseconds at);

  const ImageSetup& setup_;
  EventQueue& queue_;
  std::uint32_t first_rank_;
  std::vector<Replica> replicas_;
  std::vector<std::int64_t> waiting_;
  std::map<std::uint32_t, Job> jobs_;
  std::uint32_t next_job_ = 0;
};

}  // namespace kvlab
