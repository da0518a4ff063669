"""Hot loops: compilation, the cache of machine code, and prefetching."""
