#include "engine/serve/serve.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "engine/serve/engine_device.h"
#include "serving/fleet.h"
#include "traces/block_hashes.h"

namespace kvlab {

std::vector<std::int32_t> request_content(const TraceRequest& request, std::uint64_t seed, std::int32_t vocabulary) {
  const std::int64_t longest = std::int64_t{request.prompt_tokens} + request.output_tokens;
  const std::int64_t known = std::clamp<std::int64_t>(covered_tokens(request), request.prompt_tokens, longest);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(known));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Layer 1: unnamed content, separate from equal hashes.
    Draw draw{seed, Purpose::kContent, request.number, i, 1};
    if (const std::size_t chunk = request.hash_tokens > 0 ? i / static_cast<std::size_t>(request.hash_tokens) : request.hashes.size();
        chunk < request.hashes.size())
      draw = {seed, Purpose::kContent, request.hashes[chunk], i % static_cast<std::size_t>(request.hash_tokens), 0};
    ids[i] = static_cast<std::int32_t>(draw.below(static_cast<std::uint64_t>(vocabulary)));
  }
  return ids;
}

ServingSummary serve(const ServeSetup& setup, TraceSource& trace, RunSink& sink) {
  if (setup.make_block_cache()->needs_future()) throw InputError("the engine cannot run a block cache that knows the future");
  EngineDevice* device = nullptr;
  const MakeDevice make_device = [&](std::size_t /*pool*/) {
    auto made = std::make_unique<EngineDevice>(setup);
    device = made.get();
    return made;
  };
  LaneClock clock(setup.each_turn);
  Fleet fleet(setup, make_device, clock, trace, sink);
  clock.start(device->lane());
  ServingSummary summary = fleet.run();
  device->end();
  summary.remark = device->executor().remark();
  if (setup.emitted != nullptr) *setup.emitted = device->executor().tokens();
  return summary;
}

}  // namespace kvlab
