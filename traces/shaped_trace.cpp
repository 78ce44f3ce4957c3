#include "traces/shaped_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ceil_div.h"
#include "base/error.h"

namespace kvlab {

namespace {

constexpr const char* kNoArrival =
    ": no request arrives before the last stage ends: raise its 'rate_per_s', 'to_rate_per_s' or 'for_s' (of 'burst': lower 'every_s')";

}  // namespace

bool ShapedTrace::next(TraceRequest& request) {
  if (shape_.limit_requests > 0 && num_given_ == shape_.limit_requests) return false;
  if (!is_past_offset_) {
    for (std::uint64_t i = 0; i < shape_.offset; ++i) {
      if (!source_->next(request))
        throw InputError(fmt::format("{}: 'offset: {}' leaves nothing: the trace has {} requests", shape_.name, shape_.offset, i));
    }
    is_past_offset_ = true;
  }
  do {
    if (!source_->next(request)) {
      if (num_given_ == 0 && shape_.offset == 0) throw InputError(shape_.name + kNoArrival);
      if (num_given_ == 0) throw InputError(fmt::format("{}: 'offset: {}' leaves nothing", shape_.name, shape_.offset));
      return false;
    }
    if (num_given_ > 0 || !request.is_follow_up) break;
    ++num_orphans_;
  } while (true);
  if (!request.is_follow_up && !arrive(request)) {
    if (num_given_ == 0) throw InputError(shape_.name + kNoArrival);
    return false;
  }
  if (shape_.arrivals && shape_.arrivals->request_class() != nullptr) give_class(request);
  cut(request);
  ++num_given_;
  return true;
}

// False: no more arrivals.
bool ShapedTrace::arrive(TraceRequest& request) {
  if (!first_arrival_) first_arrival_ = shape_.offset > 0 ? request.arrival : kStart;
  request.arrival = Time(request.arrival - *first_arrival_);
  if (shape_.arrivals) request.arrival = shape_.arrivals->next(request.arrival);
  return request.arrival != kNever;
}

// Replaces the trace's class.
void ShapedTrace::give_class(TraceRequest& request) {
  if (!keeps_hashes()) facts_.clear();
  facts_.push_back(request.facts == nullptr ? RequestFacts{} : *request.facts);
  facts_.back().request_class = *shape_.arrivals->request_class();
  request.facts = &facts_.back();
}

void ShapedTrace::cut(TraceRequest& request) {
  const auto keep_hashes = [&](std::int64_t count) {
    if (count < static_cast<std::int64_t>(request.hashes.size())) request.hashes = request.hashes.first(static_cast<std::size_t>(count));
    if (request.hashes.empty()) request.hash_tokens = 0;
  };
  if (shape_.max_output_tokens > 0 && request.output_tokens > shape_.max_output_tokens) {
    ++num_cut_outputs_;
    request.output_tokens = shape_.max_output_tokens;
    if (request.hash_tokens > 0) {  // the last hash may cover a partial prompt chunk
      const std::int64_t of_prompt = ceil_div(std::int64_t{request.prompt_tokens}, request.hash_tokens);
      const std::int64_t of_all = (std::int64_t{request.prompt_tokens} + request.output_tokens) / request.hash_tokens;
      keep_hashes(std::max(of_prompt, of_all));
    }
  }
  if (shape_.max_prompt_tokens > 0 && request.prompt_tokens > shape_.max_prompt_tokens) {
    ++num_cut_prompts_;
    request.prompt_tokens = shape_.max_prompt_tokens;
    if (request.hash_tokens > 0) keep_hashes(request.prompt_tokens / request.hash_tokens);
  }
}

std::int32_t ShapedTrace::concurrency() const { return shape_.arrivals ? shape_.arrivals->concurrency() : source_->concurrency(); }

Span ShapedTrace::think_time(std::uint64_t session_index) const {
  return shape_.arrivals ? shape_.arrivals->think_time(session_index) : source_->think_time(session_index);
}

std::string ShapedTrace::skipped() const {
  std::string all = source_->skipped();
  const auto add = [&all](const std::string& what) { all += (all.empty() ? "" : "; ") + what; };
  if (num_cut_prompts_ > 0) add(fmt::format("{} prompts cut to {} tokens", num_cut_prompts_, shape_.max_prompt_tokens));
  if (num_cut_outputs_ > 0) add(fmt::format("{} outputs cut to {} tokens", num_cut_outputs_, shape_.max_output_tokens));
  if (num_orphans_ > 0) add(fmt::format("{} later turns left out with their session's start by 'offset'", num_orphans_));
  return all;
}

}  // namespace kvlab
