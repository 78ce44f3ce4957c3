#include "engine/serve/serve.h"

#include "base/error.h"
#include "engine/serve/engine_device.h"
#include "serving/fleet.h"

namespace kvlab {

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
