//! What is measured: names and meanings of the metrics of all layers, and which are there from the
//! first moment.
//!
//! # Invariants
//! Counters without labels are there as 0 from the start: a rate over one is right from its first
//! event, and an alert that names one is not silent because of a misspelling.
//!
//! # Limits
//! Gauges and histograms appear when they are first measured: a node that is in no cluster shows
//! nothing of one.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only grows; without labels, so that it can begin at 0.
    Counter,
    /// Only grows, by label.
    Labelled,
    /// Stands somewhere.
    Gauge,
    /// Seconds or amounts, in buckets.
    Histogram,
}
use Kind::{Counter, Gauge, Histogram, Labelled};

/// All of them but those of the wire, which describes its own.
const ALL: &[(Kind, &str, &str)] = &[
    (Gauge, "telesto_ready", "Whether the node is ready as GET /ready tells: 1 or 0"),
    (
        Gauge,
        "telesto_applied_lsn",
        "LSN of the last log entry applied, when metrics were asked for",
    ),
    (Gauge, "telesto_uptime_seconds", "Time since the start"),
    (Labelled, "telesto_http_requests_total", "HTTP requests, by route and status"),
    (Histogram, "telesto_http_request_seconds", "Time of HTTP requests, by route"),
    (Labelled, "telesto_bucket_requests_total", "Requests to the bucket, by class and cause"),
    (
        Labelled,
        "telesto_bucket_failures_total",
        "Requests to the bucket that failed, by class and cause",
    ),
    (Labelled, "telesto_bucket_hedges_total", "Second requests sent because the first was slow"),
    (Labelled, "telesto_bucket_uploaded_bytes_total", "Bytes sent to the bucket"),
    (Labelled, "telesto_bucket_downloaded_bytes_total", "Bytes received from the bucket"),
    (
        Gauge,
        "telesto_bucket_dollars_total",
        "Dollars of bucket requests since the start, by class and cause",
    ),
    (Histogram, "telesto_bucket_request_seconds", "Time of requests to the bucket, by class"),
    (Gauge, "telesto_cluster_nodes", "Nodes of the cluster that are known, this one among them"),
    (
        Gauge,
        "telesto_cluster_nodes_alive",
        "Nodes of the cluster that are heard, this one among them",
    ),
    (Counter, "telesto_net_connections_total", "Connections made to other nodes"),
    (Counter, "telesto_net_sent_bytes_total", "Bytes sent to other nodes and regions"),
    (Counter, "telesto_net_sent_messages_total", "Messages sent to other nodes and regions"),
    (Labelled, "telesto_log_appends_total", "Entries appended to the log, by outcome"),
    (Histogram, "telesto_log_append_seconds", "Time of an append to the log"),
    (Histogram, "telesto_commit_stage_seconds", "Time of each stage of a commit"),
    (Histogram, "telesto_commit_entries_under_way", "Entries under way when one was begun"),
    (Counter, "telesto_log_archived_entries_total", "Log entries shipped to the bucket"),
    (
        Counter,
        "telesto_log_confirm_rounds_total",
        "Rounds that asked a majority whether the log is still unsealed",
    ),
    (
        Counter,
        "telesto_log_forgotten_entries_total",
        "Log entries that this node's disk should have had and has not",
    ),
    (
        Counter,
        "telesto_log_local_reads_failed_total",
        "Log entries that could not be read from a disk and came from the archive",
    ),
    (Counter, "telesto_log_mended_total", "Times that log servers were replaced"),
    (Counter, "telesto_log_own_entries_met_total", "Appends whose second sending met the first"),
    (
        Gauge,
        "telesto_log_redundancy_lost",
        "1 on the log's owner while a copy is missing and no node can take its place",
    ),
    (
        Gauge,
        "telesto_log_server_lag_entries",
        "On the log's owner: entries that the furthest behind of the copies lacks",
    ),
    (
        Gauge,
        "telesto_log_servers_following",
        "On the log's owner: copies that take entries; 0 elsewhere",
    ),
    (
        Counter,
        "telesto_log_servers_forgot_total",
        "Times that a copy of the log turned out to have forgotten entries",
    ),
    (
        Counter,
        "telesto_log_skipped_entries_total",
        "Entries that a lagging copy passed over because the bucket has them",
    ),
    (Counter, "telesto_log_successions_total", "Times that this node took the log over"),
    (Counter, "telesto_log_syncs_total", "Times that entries were put on this node's disk"),
    (
        Counter,
        "telesto_regions_apply_retries_total",
        "Transactions of other regions that were applied again",
    ),
    (
        Labelled,
        "telesto_regions_committed_for_total",
        "Transactions of another region that were committed here",
    ),
    (
        Counter,
        "telesto_regions_conflicts_total",
        "Concurrent updates of two regions of which one was passed over",
    ),
    (
        Counter,
        "telesto_regions_removed_total",
        "Rows and index entries removed here because they are placed elsewhere now",
    ),
    (
        Histogram,
        "telesto_regions_forwarded_reads_seconds",
        "Time of a statement that another region executes, until its first rows are here",
    ),
    (
        Labelled,
        "telesto_regions_forwarded_reads_total",
        "Statements that another region was asked to execute, by what became of them",
    ),
    (
        Histogram,
        "telesto_regions_forwarded_seconds",
        "Time of a transaction that is committed in another region, until it is back here",
    ),
    (
        Labelled,
        "telesto_regions_forwarded_total",
        "Transactions that another region was asked to commit, by what it said",
    ),
    (
        Labelled,
        "telesto_regions_read_for_total",
        "Statements of another region that were executed here",
    ),
    (Labelled, "telesto_regions_sent_bytes_total", "Bytes sent to another region"),
    (Labelled, "telesto_regions_sent_transactions_total", "Transactions sent to another region"),
    (
        Histogram,
        "telesto_regions_visibility_seconds",
        "From a commit in another region until it is visible here",
    ),
    (Gauge, "telesto_text_cache_bytes", "Memory that known texts of statements are charged for"),
    (
        Gauge,
        "telesto_text_cache_entries",
        "Texts of statements that are known, or known to be none",
    ),
    (
        Counter,
        "telesto_text_cache_forgotten_total",
        "Known texts that went because there was no room for others",
    ),
    (Counter, "telesto_text_cache_hits_total", "Texts that were neither parsed nor planned"),
    (
        Counter,
        "telesto_text_cache_learned_total",
        "Statements of texts that were kept, also anew after a definition",
    ),
    (Counter, "telesto_text_cache_misses_total", "Texts that were not known"),
    (
        Counter,
        "telesto_text_cache_stale_total",
        "Known texts that were planned anew because definitions had changed",
    ),
    (Histogram, "telesto_txn_append_seconds", "Time of a group's append"),
    (
        Counter,
        "telesto_txn_appends_indeterminate_total",
        "Appends of which it was not known whether they happened",
    ),
    (Gauge, "telesto_txn_applied_lsn", "LSN of the last log entry applied"),
    (
        Counter,
        "telesto_txn_claim_waits_total",
        "Waits for a row that another transaction is changing",
    ),
    (Counter, "telesto_txn_claim_waits_in_vain_total", "Such waits that ended by their bound"),
    (
        Counter,
        "telesto_txn_clock_checks_total",
        "Times that the clock was held against the bucket's",
    ),
    (
        Counter,
        "telesto_txn_clocks_refused_total",
        "Commits refused because this node's clock is too far ahead",
    ),
    (Histogram, "telesto_txn_commit_seconds", "Time of a commit, from its request"),
    (Counter, "telesto_txn_commits_held_back_total", "Waits of commits because the tail is full"),
    (Counter, "telesto_txn_commits_total", "Transactions committed"),
    (Counter, "telesto_txn_conflicts_total", "Transactions that failed because of another"),
    (Counter, "telesto_txn_folds_total", "Times that the log was folded into the checkpoint"),
    (Counter, "telesto_txn_folds_fenced_total", "Folds given up because another process folds"),
    (Histogram, "telesto_txn_fold_seconds", "Time of a fold"),
    (Counter, "telesto_txn_forwarded_total", "Commits handed to the log's owner"),
    (Histogram, "telesto_txn_group_size", "Transactions of a group commit"),
    (Counter, "telesto_txn_looks_total", "Looks at the log's tail"),
    (Counter, "telesto_txn_looks_shared_total", "Reads that shared such a look"),
    (
        Counter,
        "telesto_txn_maintenance_failures_total",
        "Failed rounds of folding, trimming and cleaning",
    ),
    (
        Counter,
        "telesto_txn_outcomes_unknown_total",
        "Transactions whose outcome the client was not told",
    ),
    (Counter, "telesto_txn_own_slots_taken_total", "Log positions of an owner taken by another"),
    (Counter, "telesto_txn_part_bytes_total", "Bytes of large transactions put beside the log"),
    (
        Counter,
        "telesto_txn_parts_deleted_total",
        "Parts of large transactions that were cleaned up",
    ),
    (
        Counter,
        "telesto_txn_read_sets_coarsened_total",
        "Read sets that were kept less exactly to save memory",
    ),
    (Counter, "telesto_txn_refreshes_total", "Newer checkpoints opened"),
    (
        Counter,
        "telesto_txn_reopens_total",
        "Times that this process had fallen behind and opened from the checkpoint",
    ),
    (Counter, "telesto_txn_slots_lost_total", "Log positions that another process took first"),
    (
        Counter,
        "telesto_txn_snapshots_advanced_total",
        "Snapshots moved forward past a change of a claimed row",
    ),
    (Counter, "telesto_txn_spilled_bytes_total", "Bytes of transactions spilled to the local disk"),
    (Gauge, "telesto_txn_tail_bytes", "Memory of the log's tail that is not in the checkpoint yet"),
    (
        Gauge,
        "telesto_txn_tail_spilled_bytes",
        "Bytes of the log's tail on the local disk, because the checkpoint does not go on",
    ),
    (Counter, "telesto_txn_tail_spills_total", "Parts of the log's tail moved to the local disk"),
    (Counter, "telesto_txn_time_closed_total", "Times that time was closed behind a region's log"),
    (
        Counter,
        "telesto_txn_trimmed_objects_total",
        "Objects of the log deleted after the retention",
    ),
    (
        Gauge,
        "telesto_watermark_lag_seconds",
        "For how long what a label names has held back the time below which no commit comes any more",
    ),
];

/// Says what each metric means, and has counters begin at 0. The recorder must be in place.
pub(crate) fn declare() {
    for (kind, name, help) in ALL {
        match kind {
            Counter => {
                metrics::describe_counter!(*name, *help);
                metrics::counter!(*name).increment(0);
            }
            Labelled => metrics::describe_counter!(*name, *help),
            Gauge => metrics::describe_gauge!(*name, *help),
            Histogram => metrics::describe_histogram!(*name, *help),
        }
    }
    // A bucket that never failed: without it, what counts failures against requests would be empty
    // instead of 0.
    metrics::counter!("telesto_bucket_failures_total", "class" => "get", "cause" => "read")
        .increment(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_that_nothing_was_counted_in_is_there_with_its_meaning() {
        let shown = crate::metrics::install().expect("installed").render();
        for (kind, name, help) in ALL {
            let is_there = shown.lines().any(|line| line.starts_with(&format!("{name} ")));
            let is_told = shown.contains(&format!("# HELP {name} {help}\n"));
            assert!(*kind != Counter || (is_there && is_told), "{name}");
        }
    }
}
