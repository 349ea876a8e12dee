// For functions that nvcc compiles for devices, too.
#pragma once

#ifdef __CUDACC__
#define TENCACHE_HOST_DEVICE __host__ __device__
#else
#define TENCACHE_HOST_DEVICE
#endif
