/// What glibc's allocator does with freed memory, for processes that compute with LibTorch.
///
/// A step frees its activations and takes as much again in the next one. glibc gives such memory back to the
/// kernel in between, and takes a page fault for each page of it: a fifth of the CPU time of a small ConvNet.
#pragma once

namespace troupe::train {

/// From now on this process keeps what it frees, up to 32 MiB a piece, for the next step; no bit of a result
/// depends on it. Trainers and the replicas of a deployment call it as they start; a program with a loop of
/// its own calls it once, before its first step. Does nothing where the environment sets the allocator
/// (GLIBC_TUNABLES with glibc.malloc, MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_TOP_PAD_), and
/// where the allocator is not glibc's. Thread-safe.
void keep_freed_memory();

/// Gives what is free to the kernel, once: it is taken again page by page. For after a phase that needs more
/// than the next one. Thread-safe; takes milliseconds.
void give_back_freed_memory();

}  // namespace troupe::train
