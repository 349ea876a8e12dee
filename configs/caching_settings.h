// Settings of PyTorch's caching allocator, as the environment variable PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF) has
// them.
#pragma once

#include <string_view>

#include "core/caching_allocator.h"

namespace tencache {

// "max_split_size_mb:128,expandable_segments:True"; and `memory_fraction:0.9`, which a program sets by a call. Keys that
// do not change what a GPU's memory is are passed over. Throws Error that names the key and what is known.
CachingSettings parse_caching_settings(std::string_view text);

}  // namespace tencache
