#pragma once

// The body of a row operation runs on the CPU and on the device; in a .cu unit it is device code.
#ifdef __CUDACC__
#define KVLAB_BODY __device__
#else
#define KVLAB_BODY
#endif
