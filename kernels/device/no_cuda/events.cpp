#include "kernels/device/cuda/events.h"

namespace kvlab {

namespace {

[[noreturn]] void refuse() { throw CudaError(why_no_gpu()); }

}  // namespace

struct CudaTimer::State {};

void CudaTimer::Free::operator()(State* s) const noexcept { delete s; }
CudaTimer::CudaTimer() { refuse(); }
void CudaTimer::hold(double, CudaStream) { refuse(); }
void CudaTimer::start(CudaStream) { refuse(); }
void CudaTimer::stop(CudaStream) { refuse(); }
double CudaTimer::seconds() const { refuse(); }
double CudaTimer::clock_ghz() const { refuse(); }

namespace cuda {

void copy_on_device(void*, const void*, std::int64_t, CudaStream) { refuse(); }
void launch_nothing(CudaStream) { refuse(); }

}  // namespace cuda

}  // namespace kvlab
