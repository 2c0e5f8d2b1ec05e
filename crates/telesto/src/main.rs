//! The `telesto` binary.
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: the shell reads a real terminal and shows real time"
)]

mod allocator;
mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(test)]
mod tests {
    /// A name or a value that jemalloc does not know is passed over with no more than a line on
    /// standard error.
    #[test]
    fn the_allocator_has_the_options_meant() {
        assert!(tikv_jemalloc_ctl::opt::background_thread::read().expect("known"));
        assert!(tikv_jemalloc_ctl::background_thread::read().expect("known"), "not started");
        let arenas = tikv_jemalloc_ctl::opt::narenas::read().expect("known");
        let cores = std::thread::available_parallelism().expect("known").get();
        assert!(
            arenas as usize <= cores * 2,
            "{arenas} arenas on {cores} cores: one for each is meant"
        );
    }
}
