//! The `telesto` binary.
//!
//! # Memory
//! The allocator keeps what was freed for a while, to use it again without asking the system. Its default, a second,
//! is long enough for a busy node to hold twice what it uses; a fiftieth of a second is not. `MIMALLOC_PURGE_DELAY`
//! in the environment wins.
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: the shell reads a real terminal and shows real time"
)]

mod cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the allocator keeps freed memory, milliseconds.
const KEEP_FREED_MS: std::ffi::c_long = 20;
/// `mi_option_purge_delay` of mimalloc's `mimalloc.h`.
const PURGE_DELAY: std::ffi::c_int = 15;

#[allow(
    unsafe_code,
    reason = "an option of the allocator, linked in; it takes and gives plain numbers"
)]
mod allocator {
    unsafe extern "C" {
        pub safe fn mi_option_set(option: std::ffi::c_int, value: std::ffi::c_long);
        #[cfg(test)]
        pub safe fn mi_option_get(option: std::ffi::c_int) -> std::ffi::c_long;
    }
}

fn main() -> std::process::ExitCode {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        allocator::mi_option_set(PURGE_DELAY, KEEP_FREED_MS);
    }
    cli::main()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the option is mimalloc's; another version may have changed it.
    #[test]
    fn purge_delay_is_the_option_meant() {
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), 1000, "mimalloc's default");
    }
}
