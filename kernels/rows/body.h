#pragma once

// In a .cu unit the body of a row operation is device code.
#ifdef __CUDACC__
#define KVLAB_BODY __device__
#else
#define KVLAB_BODY
#endif
