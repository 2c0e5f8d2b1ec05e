//! Parameters of PostgreSQL's planner, executor and log: known by name, checked, kept and shown,
//! without effect here.
//!
//! # Why they are taken
//! Tools and applications set them (`SET enable_hashjoin = off`) to say how PostgreSQL finds an
//! answer, never which. A name that is not in the list is refused (42704), and so is a value that
//! PostgreSQL refuses (22023).
//!
//! # Invariants
//! - Sorted by name. A parameter that changes what a statement means is not in the list.
//! - Values are shown as PostgreSQL shows them: with the largest unit that fits.

use std::time::Duration;

use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_txn::Staleness;

use crate::settings::Settings;

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Flag,
    /// One of these words.
    OneOf(&'static str),
    Whole {
        least: f64,
        most: f64,
        unit: &'static str,
    },
    Real {
        least: f64,
        most: f64,
        unit: &'static str,
    },
}

/// How old may be what queries below strict see.
const MAX_STALENESS: &str = "telesto.max_staleness";
/// Whether they see what the node has where that cannot be found out.
const SERVE_STALE: &str = "telesto.serve_stale";

/// Name, value at the start in its base unit, kind.
const PARAMETERS: [(&str, &str, Kind); 134] = [
    ("backend_flush_after", "0", Kind::Whole { least: 0.0, most: 256.0, unit: "8kB" }),
    (
        "client_connection_check_interval",
        "0",
        Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "ms" },
    ),
    ("commit_delay", "0", Kind::Whole { least: 0.0, most: 100_000.0, unit: "" }),
    ("commit_siblings", "5", Kind::Whole { least: 0.0, most: 1_000.0, unit: "" }),
    ("compute_query_id", "auto", Kind::OneOf("auto,regress,on,off")),
    ("constraint_exclusion", "partition", Kind::OneOf("partition,on,off")),
    ("cpu_index_tuple_cost", "0.005", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("cpu_operator_cost", "0.0025", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("cpu_tuple_cost", "0.01", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("cursor_tuple_fraction", "0.1", Kind::Real { least: 0.0, most: 1.0, unit: "" }),
    ("deadlock_timeout", "1000", Kind::Whole { least: 1.0, most: 2_147_483_647.0, unit: "ms" }),
    ("debug_discard_caches", "0", Kind::Whole { least: 0.0, most: 0.0, unit: "" }),
    ("debug_pretty_print", "on", Kind::Flag),
    ("debug_print_parse", "off", Kind::Flag),
    ("debug_print_plan", "off", Kind::Flag),
    ("debug_print_rewritten", "off", Kind::Flag),
    ("default_statistics_target", "100", Kind::Whole { least: 1.0, most: 10_000.0, unit: "" }),
    (
        "effective_cache_size",
        "524288",
        Kind::Whole { least: 1.0, most: 2_147_483_647.0, unit: "8kB" },
    ),
    ("effective_io_concurrency", "1", Kind::Whole { least: 0.0, most: 1_000.0, unit: "" }),
    ("enable_async_append", "on", Kind::Flag),
    ("enable_bitmapscan", "on", Kind::Flag),
    ("enable_gathermerge", "on", Kind::Flag),
    ("enable_hashagg", "on", Kind::Flag),
    ("enable_hashjoin", "on", Kind::Flag),
    ("enable_incremental_sort", "on", Kind::Flag),
    ("enable_indexonlyscan", "on", Kind::Flag),
    ("enable_indexscan", "on", Kind::Flag),
    ("enable_material", "on", Kind::Flag),
    ("enable_memoize", "on", Kind::Flag),
    ("enable_mergejoin", "on", Kind::Flag),
    ("enable_nestloop", "on", Kind::Flag),
    ("enable_parallel_append", "on", Kind::Flag),
    ("enable_parallel_hash", "on", Kind::Flag),
    ("enable_partition_pruning", "on", Kind::Flag),
    ("enable_partitionwise_aggregate", "off", Kind::Flag),
    ("enable_partitionwise_join", "off", Kind::Flag),
    ("enable_seqscan", "on", Kind::Flag),
    ("enable_sort", "on", Kind::Flag),
    ("enable_tidscan", "on", Kind::Flag),
    ("force_parallel_mode", "off", Kind::OneOf("off,on,regress")),
    ("from_collapse_limit", "8", Kind::Whole { least: 1.0, most: 2_147_483_647.0, unit: "" }),
    ("geqo", "on", Kind::Flag),
    ("geqo_effort", "5", Kind::Whole { least: 1.0, most: 10.0, unit: "" }),
    ("geqo_generations", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "" }),
    ("geqo_pool_size", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "" }),
    ("geqo_seed", "0", Kind::Real { least: 0.0, most: 1.0, unit: "" }),
    ("geqo_selection_bias", "2", Kind::Real { least: 1.5, most: 2.0, unit: "" }),
    ("geqo_threshold", "12", Kind::Whole { least: 2.0, most: 2_147_483_647.0, unit: "" }),
    ("gin_fuzzy_search_limit", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "" }),
    (
        "gin_pending_list_limit",
        "4096",
        Kind::Whole { least: 64.0, most: 2_147_483_647.0, unit: "kB" },
    ),
    ("hash_mem_multiplier", "2", Kind::Real { least: 1.0, most: 1_000.0, unit: "" }),
    (
        "idle_in_transaction_session_timeout",
        "0",
        Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "ms" },
    ),
    ("idle_session_timeout", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "ms" }),
    ("jit", "off", Kind::Flag),
    ("jit_above_cost", "100000", Kind::Real { least: -1.0, most: 1.79769e+308, unit: "" }),
    ("jit_dump_bitcode", "off", Kind::Flag),
    ("jit_expressions", "on", Kind::Flag),
    ("jit_inline_above_cost", "500000", Kind::Real { least: -1.0, most: 1.79769e+308, unit: "" }),
    ("jit_optimize_above_cost", "500000", Kind::Real { least: -1.0, most: 1.79769e+308, unit: "" }),
    ("jit_tuple_deforming", "on", Kind::Flag),
    ("join_collapse_limit", "8", Kind::Whole { least: 1.0, most: 2_147_483_647.0, unit: "" }),
    ("lock_timeout", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "ms" }),
    ("log_duration", "off", Kind::Flag),
    ("log_error_verbosity", "default", Kind::OneOf("terse,default,verbose")),
    ("log_executor_stats", "off", Kind::Flag),
    ("log_lock_waits", "off", Kind::Flag),
    (
        "log_min_duration_sample",
        "-1",
        Kind::Whole { least: -1.0, most: 2_147_483_647.0, unit: "ms" },
    ),
    (
        "log_min_duration_statement",
        "-1",
        Kind::Whole { least: -1.0, most: 2_147_483_647.0, unit: "ms" },
    ),
    (
        "log_min_error_statement",
        "error",
        Kind::OneOf("debug5,debug4,debug3,debug2,debug1,info,notice,warning,error,log,fatal,panic"),
    ),
    (
        "log_min_messages",
        "warning",
        Kind::OneOf("debug5,debug4,debug3,debug2,debug1,info,notice,warning,error,log,fatal,panic"),
    ),
    (
        "log_parameter_max_length",
        "-1",
        Kind::Whole { least: -1.0, most: 1_073_741_823.0, unit: "B" },
    ),
    (
        "log_parameter_max_length_on_error",
        "0",
        Kind::Whole { least: -1.0, most: 1_073_741_823.0, unit: "B" },
    ),
    ("log_parser_stats", "off", Kind::Flag),
    ("log_planner_stats", "off", Kind::Flag),
    ("log_replication_commands", "off", Kind::Flag),
    ("log_statement_sample_rate", "1", Kind::Real { least: 0.0, most: 1.0, unit: "" }),
    ("log_statement_stats", "off", Kind::Flag),
    ("log_temp_files", "-1", Kind::Whole { least: -1.0, most: 2_147_483_647.0, unit: "kB" }),
    ("log_transaction_sample_rate", "0", Kind::Real { least: 0.0, most: 1.0, unit: "" }),
    (
        "logical_decoding_work_mem",
        "65536",
        Kind::Whole { least: 64.0, most: 2_147_483_647.0, unit: "kB" },
    ),
    ("maintenance_io_concurrency", "10", Kind::Whole { least: 0.0, most: 1_000.0, unit: "" }),
    (
        "maintenance_work_mem",
        "65536",
        Kind::Whole { least: 1_024.0, most: 2_147_483_647.0, unit: "kB" },
    ),
    ("max_parallel_maintenance_workers", "2", Kind::Whole { least: 0.0, most: 1_024.0, unit: "" }),
    ("max_parallel_workers", "8", Kind::Whole { least: 0.0, most: 1_024.0, unit: "" }),
    ("max_parallel_workers_per_gather", "0", Kind::Whole { least: 0.0, most: 1_024.0, unit: "" }),
    ("max_stack_depth", "100", Kind::Whole { least: 100.0, most: 2_147_483_647.0, unit: "kB" }),
    (
        "min_parallel_index_scan_size",
        "64",
        Kind::Whole { least: 0.0, most: 715_827_882.0, unit: "8kB" },
    ),
    (
        "min_parallel_table_scan_size",
        "1024",
        Kind::Whole { least: 0.0, most: 715_827_882.0, unit: "8kB" },
    ),
    ("parallel_leader_participation", "on", Kind::Flag),
    ("parallel_setup_cost", "1000", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("parallel_tuple_cost", "0.1", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("password_encryption", "scram-sha-256", Kind::OneOf("scram-sha-256")),
    ("plan_cache_mode", "auto", Kind::OneOf("auto,force_generic_plan,force_custom_plan")),
    ("random_page_cost", "4", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("recursive_worktable_factor", "10", Kind::Real { least: 0.001, most: 1_000_000.0, unit: "" }),
    ("seq_page_cost", "1", Kind::Real { least: 0.0, most: 1.79769e+308, unit: "" }),
    ("stats_fetch_consistency", "cache", Kind::OneOf("none,cache,snapshot")),
    ("tcp_keepalives_count", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "" }),
    ("tcp_keepalives_idle", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "s" }),
    ("tcp_keepalives_interval", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "s" }),
    ("tcp_user_timeout", "0", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "ms" }),
    ("telesto.commutative_updates", "on", Kind::Flag),
    ("telesto.forward_reads", "on", Kind::Flag),
    ("telesto.forward_writes", "on", Kind::Flag),
    ("telesto.local_rows", "off", Kind::Flag),
    (MAX_STALENESS, "10000", Kind::Whole { least: -1.0, most: 2_147_483_647.0, unit: "ms" }),
    (SERVE_STALE, "off", Kind::Flag),
    ("telesto.text_cache", "on", Kind::OneOf("on,off,eager")),
    ("temp_buffers", "1024", Kind::Whole { least: 100.0, most: 1_073_741_823.0, unit: "8kB" }),
    ("temp_file_limit", "-1", Kind::Whole { least: -1.0, most: 2_147_483_647.0, unit: "kB" }),
    ("trace_notify", "off", Kind::Flag),
    ("trace_sort", "off", Kind::Flag),
    ("track_activities", "on", Kind::Flag),
    ("track_counts", "on", Kind::Flag),
    ("track_functions", "none", Kind::OneOf("none,pl,all")),
    ("track_io_timing", "off", Kind::Flag),
    ("track_wal_io_timing", "off", Kind::Flag),
    ("update_process_title", "on", Kind::Flag),
    ("vacuum_cost_delay", "0", Kind::Real { least: 0.0, most: 100.0, unit: "ms" }),
    ("vacuum_cost_limit", "200", Kind::Whole { least: 1.0, most: 10_000.0, unit: "" }),
    ("vacuum_cost_page_dirty", "20", Kind::Whole { least: 0.0, most: 10_000.0, unit: "" }),
    ("vacuum_cost_page_hit", "1", Kind::Whole { least: 0.0, most: 10_000.0, unit: "" }),
    ("vacuum_cost_page_miss", "2", Kind::Whole { least: 0.0, most: 10_000.0, unit: "" }),
    (
        "vacuum_failsafe_age",
        "1600000000",
        Kind::Whole { least: 0.0, most: 2_100_000_000.0, unit: "" },
    ),
    (
        "vacuum_freeze_min_age",
        "50000000",
        Kind::Whole { least: 0.0, most: 1_000_000_000.0, unit: "" },
    ),
    (
        "vacuum_freeze_table_age",
        "150000000",
        Kind::Whole { least: 0.0, most: 2_000_000_000.0, unit: "" },
    ),
    (
        "vacuum_multixact_failsafe_age",
        "1600000000",
        Kind::Whole { least: 0.0, most: 2_100_000_000.0, unit: "" },
    ),
    (
        "vacuum_multixact_freeze_min_age",
        "5000000",
        Kind::Whole { least: 0.0, most: 1_000_000_000.0, unit: "" },
    ),
    (
        "vacuum_multixact_freeze_table_age",
        "150000000",
        Kind::Whole { least: 0.0, most: 2_000_000_000.0, unit: "" },
    ),
    ("wal_compression", "off", Kind::OneOf("pglz,lz4,zstd,on,off")),
    ("wal_init_zero", "on", Kind::Flag),
    ("wal_recycle", "on", Kind::Flag),
    ("wal_skip_threshold", "2048", Kind::Whole { least: 0.0, most: 2_147_483_647.0, unit: "kB" }),
    ("work_mem", "4096", Kind::Whole { least: 64.0, most: 2_147_483_647.0, unit: "kB" }),
];

/// Units of memory, bytes.
const MEMORY: [(&str, f64); 5] = [
    ("TB", 1_099_511_627_776.0),
    ("GB", 1_073_741_824.0),
    ("MB", 1_048_576.0),
    ("kB", 1024.0),
    ("B", 1.0),
];
/// Units of time, microseconds.
const TIME: [(&str, f64); 6] = [
    ("d", 86_400_000_000.0),
    ("h", 3_600_000_000.0),
    ("min", 60_000_000.0),
    ("s", 1_000_000.0),
    ("ms", 1_000.0),
    ("us", 1.0),
];

fn found(name: &str) -> Option<&'static (&'static str, &'static str, Kind)> {
    PARAMETERS.binary_search_by(|(known, ..)| (*known).cmp(name)).ok().map(|at| &PARAMETERS[at])
}

impl Settings {
    /// How old may be what queries below strict see.
    #[must_use]
    pub fn staleness(&self) -> Staleness {
        let most = match self.others.get(MAX_STALENESS) {
            None => Staleness::USUAL.most,
            Some(value) => in_base(value, "ms")
                .filter(|ms| *ms >= 0.0)
                .map(|ms| Duration::from_secs_f64(ms / 1000.0)),
        };
        let or_what_is_here = self.others.get(SERVE_STALE).is_some_and(|value| value == "on");
        Staleness { most, or_what_is_here }
    }
}

/// The parameter that bounds how long a session may idle outside of a transaction.
const IDLE: &str = "idle_session_timeout";
/// The parameter that bounds how long a session may idle in one.
const IDLE_IN_TRANSACTION: &str = "idle_in_transaction_session_timeout";

impl Settings {
    /// How long the session asks to be let idle, `in_transaction` or outside; `None`: as long as it
    /// likes.
    #[must_use]
    pub fn idle_timeout(&self, in_transaction: bool) -> Option<Duration> {
        let value = self.others.get(if in_transaction { IDLE_IN_TRANSACTION } else { IDLE })?;
        let ms = in_base(value, "ms").filter(|ms| *ms > 0.0)?;
        Some(Duration::from_secs_f64(ms / 1000.0))
    }
}

/// Every parameter's name.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().map(|(name, ..)| *name)
}

/// What SHOW gives for a parameter that was not set.
pub(crate) fn initial(name: &str) -> Option<String> {
    let (_, value, kind) = found(name)?;
    Some(canonical(name, value, *kind).unwrap_or_else(|_| (*value).to_owned()))
}

/// A value as it is kept and shown; `None`: the parameter is none of these.
///
/// # Errors
/// 22023 for a value that the parameter does not take.
pub(crate) fn checked(name: &str, value: &str) -> Result<Option<String>> {
    found(name).map(|(_, _, kind)| canonical(name, value, *kind)).transpose()
}

fn invalid(name: &str, value: &str) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("invalid value for parameter \"{name}\": \"{value}\""),
    )
}

fn canonical(name: &str, value: &str, kind: Kind) -> Result<String> {
    let lower = value.trim().to_ascii_lowercase();
    match kind {
        Kind::Flag => {
            flag(&lower).map(|on| if on { "on" } else { "off" }.to_owned()).ok_or_else(|| {
                Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("parameter \"{name}\" requires a Boolean value"),
                )
            })
        }
        Kind::OneOf(words) => {
            let known = words.split(',').find(|word| word.eq_ignore_ascii_case(&lower));
            let spelled = flag(&lower).map(|on| if on { "on" } else { "off" });
            let known = known.or_else(|| spelled.filter(|s| words.split(',').any(|w| w == *s)));
            known.map(str::to_owned).ok_or_else(|| invalid(name, value))
        }
        Kind::Whole { least, most, unit } => {
            let number =
                in_base(value, unit).ok_or_else(|| invalid(name, value))?.round_ties_even();
            in_bounds(name, number, least, most)?;
            Ok(shown(number, unit))
        }
        Kind::Real { least, most, unit } => {
            let number = in_base(value, unit).ok_or_else(|| invalid(name, value))?;
            in_bounds(name, number, least, most)?;
            Ok(shown(number, unit))
        }
    }
}

/// A truth value, or its beginning as far as it is clear.
fn flag(lower: &str) -> Option<bool> {
    match lower {
        "1" | "on" => Some(true),
        "0" | "of" | "off" => Some(false),
        "" => None,
        _ if "true".starts_with(lower) || "yes".starts_with(lower) => Some(true),
        _ if "false".starts_with(lower) || "no".starts_with(lower) => Some(false),
        _ => None,
    }
}

fn in_bounds(name: &str, number: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&number) {
        return Ok(());
    }
    Err(Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("{number} is outside the valid range for parameter \"{name}\" ({least} .. {most})"),
    ))
}

/// The unit's size, and those it may be given in.
fn units(unit: &str) -> Option<(f64, &'static [(&'static str, f64)])> {
    let digits = unit.bytes().take_while(u8::is_ascii_digit).count();
    let count: f64 = if digits == 0 { 1.0 } else { unit[..digits].parse().ok()? };
    for table in [&MEMORY[..], &TIME[..]] {
        if let Some((_, size)) = table.iter().find(|(name, _)| *name == &unit[digits..]) {
            return Some((size * count, table));
        }
    }
    None
}

/// A number with or without a unit, in the base unit.
fn in_base(value: &str, unit: &str) -> Option<f64> {
    let value = value.trim();
    let digits = value
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E')))
        .unwrap_or(value.len());
    let number: f64 = value[..digits].parse().ok()?;
    let given = value[digits..].trim();
    if given.is_empty() {
        return number.is_finite().then_some(number);
    }
    let (base, table) = units(unit)?;
    let (_, size) = table.iter().find(|(name, _)| *name == given)?;
    Some(number * size / base)
}

fn shown(number: f64, unit: &str) -> String {
    let Some((base, table)) = units(unit).filter(|_| number > 0.0) else {
        return number.to_string();
    };
    let whole = number * base;
    let fits = table.iter().find(|(_, size)| whole % size == 0.0);
    match fits {
        Some((name, size)) => format!("{}{name}", whole / size),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_sorted_and_their_first_values_fit() {
        assert!(PARAMETERS.windows(2).all(|two| two[0].0 < two[1].0));
        for (name, value, kind) in PARAMETERS {
            assert!(canonical(name, value, kind).is_ok(), "{name}");
        }
    }

    #[test]
    fn values_are_checked_and_shown_as_in_postgres() {
        for (name, value, shown) in [
            ("enable_hashjoin", "OFF", "off"),
            ("enable_hashjoin", "y", "on"),
            ("work_mem", "8192", "8MB"),
            ("work_mem", "64kB", "64kB"),
            ("max_stack_depth", "100kB", "100kB"),
            ("min_parallel_table_scan_size", "0", "0"),
            ("min_parallel_table_scan_size", "1024", "8MB"),
            ("hash_mem_multiplier", "2", "2"),
            ("force_parallel_mode", "TRUE", "on"),
            ("plan_cache_mode", "auto", "auto"),
        ] {
            assert_eq!(
                checked(name, value).expect("fits").as_deref(),
                Some(shown),
                "{name} {value}"
            );
        }
        for (name, value) in [
            ("enable_hashjoin", "foo"),
            ("work_mem", "1"),
            ("plan_cache_mode", "x"),
            ("work_mem", "8 parsecs"),
        ] {
            assert_eq!(
                checked(name, value).expect_err("refused").code().0,
                "22023",
                "{name} {value}"
            );
        }
        assert_eq!(checked("nosuch", "1").expect("no error"), None);
    }

    #[test]
    fn bound_of_staleness_is_read_as_it_is_kept() {
        let mut settings = Settings::default();
        assert_eq!(settings.staleness(), Staleness::USUAL);
        assert_eq!(initial(MAX_STALENESS).as_deref(), Some("10s"), "the same is shown");
        for (value, most) in [
            ("1500", Some(Duration::from_millis(1500))),
            ("2min", Some(Duration::from_secs(120))),
            ("0", Some(Duration::ZERO)),
            ("-1", None),
        ] {
            settings.set(MAX_STALENESS, &[value.to_owned()]).expect("a time");
            assert_eq!(settings.staleness().most, most, "{value}");
        }
        settings.set(SERVE_STALE, &["on".to_owned()]).expect("a flag");
        assert!(settings.staleness().or_what_is_here);
    }
}
