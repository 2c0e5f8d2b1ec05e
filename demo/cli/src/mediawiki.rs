//! `telesto-demo import mediawiki`.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use telesto_mediawiki::dump::Dump;
use telesto_mediawiki::import::{Options, Report, import};

use crate::sql::{connect, full};

/// Imports a dump into the node at `url`; goes on where an earlier run of the same file stopped.
///
/// # Errors
/// What is wrong with the dump or the node; what was committed stays.
pub async fn run(file: &Path, url: &str, batch_pages: usize) -> Result<(), String> {
    let name = file
        .file_name()
        .map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().into_owned());
    let mut dump = Dump::open(file).map_err(|error| full(&error))?;
    let mut client = connect(url).await?;
    let bar = ProgressBar::new(0);
    let template = "{bar:30} {percent:>3}% {msg} {elapsed} (eta {eta})";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let options = Options { name, batch_pages: batch_pages.max(1), batch_bytes: 4 << 20 };
    let show = |read: u64, size: u64, report: &Report| {
        bar.set_length(size);
        bar.set_position(read);
        bar.set_message(format!("{} pages", report.skipped + report.pages));
    };
    let imported = import(&mut client, &mut dump, &options, show).await;
    bar.finish_and_clear();
    let report = imported.map_err(|error| full(&error))?;
    println!(
        "imported {} pages, {} links, {} categories in {} transactions{}",
        report.pages,
        report.links,
        report.categories,
        report.transactions,
        match report.skipped {
            0 => String::new(),
            skipped => format!(" ({skipped} pages were there from an earlier run)"),
        }
    );
    Ok(())
}
