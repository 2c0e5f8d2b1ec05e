//! The `telesto` binary.
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: the shell reads a real terminal and shows real time"
)]

mod cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
