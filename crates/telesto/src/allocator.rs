//! The allocator of the binary and of the benchmarks: jemalloc.
//!
//! # Why
//! `--memory` bounds the resident set, so what counts is what an allocator keeps beyond what is in
//! use. Rows of a cache live among rows long gone, and blocking threads free what others allocated:
//! an allocator with a heap for each thread kept three times of what was in use
//! (`docs/operating/memory.md`).
//!
//! # Limits
//! `_RJEM_MALLOC_CONF` in the environment wins over [`OPTIONS`]. An embedded database runs on its
//! host's allocator.

/// One arena for each core, shared by the threads on it; what was freed goes back to the system
/// within a tenth of a second, by a thread that does only this, so that an idle node gives back
/// too; no huge pages: one stays resident as long as anything in it lives.
#[allow(unsafe_code, reason = "a name that jemalloc looks for; nothing else has it")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static OPTIONS: &[u8; 114] = b"percpu_arena:percpu,background_thread:true,max_background_threads:1,dirty_decay_ms:100,muzzy_decay_ms:0,thp:never\0";

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
