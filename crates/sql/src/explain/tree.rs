//! EXPLAIN (FORMAT JSON): a plan's lines as the tree of nodes that tools for PostgreSQL's plans
//! read.
//!
//! # Invariants
//! - The shape is that of PostgreSQL 15 with COSTS OFF and TIMING OFF, and `Plan Rows` where tables
//!   were analyzed.
//! - A node's type is PostgreSQL's name for what it does; its own line is its `Detail`. A step that
//!   PostgreSQL has no name for keeps its own; what only moves rows between steps is left out.
//!
//! Nothing here fails: a line that is not known is a node of its own name.

use serde_json::{Map, Value as Json, json};

/// A line of the plan and those below it.
struct Step<'l> {
    text: &'l str,
    inputs: Vec<Step<'l>>,
}

/// The steps of indented lines.
fn steps<'l>(lines: &[&'l str]) -> Vec<Step<'l>> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut out = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let own = depth(lines[at]);
        let rest = &lines[at + 1..];
        let below = rest.iter().take_while(|line| depth(line) > own).count();
        out.push(Step { text: lines[at].trim_start(), inputs: steps(&rest[..below]) });
        at += 1 + below;
    }
    out
}

fn node(kind: &str) -> Map<String, Json> {
    let mut out = Map::new();
    out.insert("Node Type".to_owned(), json!(kind));
    out.insert("Parallel Aware".to_owned(), json!(false));
    out.insert("Async Capable".to_owned(), json!(false));
    out
}

fn with(mut map: Map<String, Json>, name: &str, value: &str) -> Map<String, Json> {
    map.insert(name.to_owned(), json!(value));
    map
}

/// The node with its inputs: the first is the outer one, a second the inner one.
fn over(mut map: Map<String, Json>, inputs: Vec<Map<String, Json>>) -> Map<String, Json> {
    if inputs.is_empty() {
        return map;
    }
    let member = map.get("Node Type") == Some(&json!("Append"));
    let inputs = inputs.into_iter().enumerate().map(|(at, input)| {
        let relation = if member {
            "Member"
        } else if at == 0 {
            "Outer"
        } else {
            "Inner"
        };
        Json::Object(with(input, "Parent Relationship", relation))
    });
    map.insert("Plans".to_owned(), Json::Array(inputs.collect()));
    map
}

/// The lines of a plan that say something, without estimates unless `costs` are asked for.
pub(super) fn shown(lines: &str, costs: bool) -> Vec<&str> {
    let lines = lines.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines.map(|line| if costs { line } else { estimated(line).0 }).collect()
}

/// The tree of a plan; `key` says whose lines these are.
pub(super) fn tree(key: bool, lines: &[&str]) -> Json {
    let nodes: Vec<Map<String, Json>> =
        if key { key_path(lines) } else { steps(lines).into_iter().flat_map(operator).collect() };
    let mut nodes = nodes.into_iter();
    let root = match (nodes.next(), nodes.next()) {
        (Some(one), None) => one,
        (Some(first), Some(second)) => {
            over(node("Append"), [first, second].into_iter().chain(nodes).collect())
        }
        (None, _) => node("Result"),
    };
    Json::Object(root)
}

/// `key=value` of a line, up to the next comma.
fn field<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let from = line.find(name)? + name.len();
    line[from..].split([',', ']']).next()
}

/// DataFusion's operators by PostgreSQL's names; none for those that only move rows.
fn operator(step: Step<'_>) -> Vec<Map<String, Json>> {
    let inputs: Vec<_> = step.inputs.into_iter().flat_map(operator).collect();
    let (line, expected) = estimated(step.text);
    let (name, detail) = line.split_once(": ").unwrap_or((line, ""));
    let name = name.split(',').next().unwrap_or(name);
    let detail = detail.split(", metrics=[").next().unwrap_or(detail);
    let mut out = match name {
        "CooperativeExec"
        | "SliceExec"
        | "OpaqueExec"
        | "RepartitionExec"
        | "CoalesceBatchesExec"
        | "CoalescePartitionsExec"
            if inputs.len() == 1 =>
        {
            return inputs;
        }
        "SortExec" => node("Sort"),
        "SortPreservingMergeExec" => node("Gather Merge"),
        "ProjectionExec" | "FilterExec" | "PlaceholderRowExec" | "EmptyExec" => node("Result"),
        "GlobalLimitExec" | "LocalLimitExec" => node("Limit"),
        "UnionExec" | "InterleaveExec" => node("Append"),
        "WindowAggExec" | "BoundedWindowAggExec" => node("WindowAgg"),
        "UnnestExec" => node("ProjectSet"),
        "RecursiveQueryExec" => node("Recursive Union"),
        "WorkTableExec" => node("WorkTable Scan"),
        "AggregateExec" => {
            let grouped = field(detail, "gby=[").is_some_and(|keys| !keys.is_empty());
            with(node("Aggregate"), "Strategy", if grouped { "Hashed" } else { "Plain" })
        }
        "HashJoinExec" | "SymmetricHashJoinExec" => joined(node("Hash Join"), detail),
        "SortMergeJoinExec" => joined(node("Merge Join"), detail),
        "NestedLoopJoinExec" | "CrossJoinExec" => joined(node("Nested Loop"), detail),
        _ => match scan(name) {
            Some(scan) => scan,
            None => node(name.strip_suffix("Exec").unwrap_or(name)),
        },
    };
    if let Some(rows) = field(line, "output_rows=").and_then(|rows| rows.parse::<f64>().ok()) {
        out.insert("Actual Rows".to_owned(), json!(rows));
        out.insert("Actual Loops".to_owned(), json!(1));
    }
    out.extend(expected);
    if !detail.is_empty() {
        out = with(out, "Detail", detail);
    }
    vec![over(out, inputs)]
}

/// A line without ` (rows=n)` at its end, and that as a field.
fn estimated(line: &str) -> (&str, Option<(String, Json)>) {
    let found = line.rsplit_once(" (rows=").and_then(|(line, rest)| {
        let rows: u64 = rest.split_once(')')?.0.parse().ok()?;
        Some((line, Some(("Plan Rows".to_owned(), json!(rows)))))
    });
    found.unwrap_or((line, None))
}

fn joined(map: Map<String, Json>, detail: &str) -> Map<String, Json> {
    let kind = field(detail, "join_type=").unwrap_or("Inner");
    with(
        map,
        "Join Type",
        kind.strip_prefix("Left").filter(|rest| !rest.is_empty()).unwrap_or(kind),
    )
}

/// `Seq Scan on t`, `Index Scan using i on t`.
fn scan(text: &str) -> Option<Map<String, Json>> {
    let (kind, table) = text.split_once(" on ")?;
    let (kind, index) = kind.split_once(" using ").map_or((kind, None), |(k, i)| (k, Some(i)));
    if !kind.ends_with("Scan") {
        return None;
    }
    let out = with(with(node(kind), "Relation Name", table), "Alias", table);
    Some(match index {
        Some(index) => with(with(out, "Scan Direction", "Forward"), "Index Name", index),
        None => out,
    })
}

/// The key path's lines: each join goes on from all lines before it.
fn key_path(lines: &[&str]) -> Vec<Map<String, Json>> {
    let mut out: Vec<Map<String, Json>> = Vec::new();
    for line in lines {
        let line = line.trim_start();
        match line.strip_prefix("-> ").and_then(|step| step.split_once("join: ")) {
            Some((kind, words)) => {
                let kind = match kind.trim() {
                    "left" => "Left",
                    "semi" => "Semi",
                    "anti" => "Anti",
                    _ => "Inner",
                };
                let outer = out.pop();
                let inputs = outer.into_iter().chain([access(words)]).collect();
                out.push(over(with(node("Nested Loop"), "Join Type", kind), inputs));
            }
            None => out.push(statement(line)),
        }
    }
    out
}

fn statement(line: &str) -> Map<String, Json> {
    // Parts of a statement are numbered.
    let line = match line.split_once(": ") {
        Some((part, rest)) if part.starts_with("Part ") || part == "Then" => rest,
        _ => line,
    };
    let words = |rest: &'_ str| rest.strip_prefix("Key path: ").unwrap_or(rest).to_owned();
    for (prefix, operation) in
        [("Update; ", "Update"), ("Update by addition; ", "Update"), ("Delete; ", "Delete")]
    {
        if let Some(rest) = line.strip_prefix(prefix) {
            let input = access(&words(rest));
            let table = input.get("Relation Name").and_then(Json::as_str).map(str::to_owned);
            return over(change(operation, table.as_deref()), vec![input]);
        }
    }
    let rest = words(line);
    if let Some((table, from)) =
        rest.strip_prefix("insert into ").and_then(|rest| rest.split_once(" from "))
    {
        return over(change("Insert", Some(table)), vec![with(node("Result"), "Detail", from)]);
    }
    access(&rest)
}

fn change(operation: &str, table: Option<&str>) -> Map<String, Json> {
    let out = with(node("ModifyTable"), "Operation", operation);
    match table {
        Some(table) => with(with(out, "Relation Name", table), "Alias", table),
        None => out,
    }
}

/// `look-up on t by i`, `range on t by i, backwards`, `range on t by i, index only`,
/// `full scan on t by i, filtered`.
fn access(words: &str) -> Map<String, Json> {
    let (words, expected) = estimated(words);
    let mut out = accessed(words);
    out.extend(expected);
    out
}

fn accessed(words: &str) -> Map<String, Json> {
    let found =
        words.split_once(" on ").and_then(|(what, rest)| Some((what, rest.split_once(" by ")?)));
    let Some((what, (table, rest))) = found else {
        return with(node("Result"), "Detail", words);
    };
    let index = rest.split(',').next().unwrap_or(rest);
    let out = if what == "full scan" {
        node("Seq Scan")
    } else {
        let direction = if rest.contains(", backwards") { "Backward" } else { "Forward" };
        let kind = if rest.contains(", index only") { "Index Only Scan" } else { "Index Scan" };
        with(with(node(kind), "Scan Direction", direction), "Index Name", index)
    };
    with(with(with(out, "Relation Name", table), "Alias", table), "Detail", words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_nodes_with_their_inputs() {
        let lines = [
            "SortExec: expr=[b@0 ASC], metrics=[output_rows=3, elapsed_compute=1ns]",
            "  AggregateExec: mode=Single, gby=[b@0 as b], aggr=[]",
            "    CooperativeExec",
            "      HashJoinExec: mode=CollectLeft, join_type=LeftSemi, on=[(a@0, a@0)]",
            "        Seq Scan on u",
            "        Index Scan using t_pkey on t, bounds: 1 of 2, metrics=[output_rows=7]",
        ];
        let plan = tree(false, &lines);
        assert_eq!(plan["Node Type"], "Sort");
        assert_eq!(plan["Actual Rows"], 3.0);
        let group = &plan["Plans"][0];
        assert_eq!(
            (&group["Node Type"], &group["Strategy"]),
            (&json!("Aggregate"), &json!("Hashed"))
        );
        let join = &group["Plans"][0];
        assert_eq!((&join["Node Type"], &join["Join Type"]), (&json!("Hash Join"), &json!("Semi")));
        assert_eq!(join["Plans"][0]["Relation Name"], "u");
        assert_eq!(join["Plans"][0]["Parent Relationship"], "Outer");
        assert_eq!(join["Plans"][1]["Index Name"], "t_pkey");
        assert_eq!(join["Plans"][1]["Relation Name"], "t");
        assert_eq!(join["Plans"][1]["Parent Relationship"], "Inner");
        assert_eq!(join["Plans"][1]["Actual Rows"], 7.0);
    }

    #[test]
    fn key_paths_become_scans_loops_and_changes() {
        let lines =
            ["Key path: look-up on u by u_pkey", "  -> left join: range on t by t_i, backwards"];
        let plan = tree(true, &lines);
        assert_eq!(
            (&plan["Node Type"], &plan["Join Type"]),
            (&json!("Nested Loop"), &json!("Left"))
        );
        assert_eq!(plan["Plans"][0]["Index Name"], "u_pkey");
        assert_eq!(plan["Plans"][1]["Scan Direction"], "Backward");
        let plan = tree(true, &["Delete; Key path: full scan on t by t_pkey, filtered"]);
        assert_eq!(
            (&plan["Node Type"], &plan["Operation"]),
            (&json!("ModifyTable"), &json!("Delete"))
        );
        assert_eq!(plan["Relation Name"], "t");
        assert_eq!(plan["Plans"][0]["Node Type"], "Seq Scan");
        let plan = tree(true, &["Key path: insert into t from a query"]);
        assert_eq!((&plan["Operation"], &plan["Relation Name"]), (&json!("Insert"), &json!("t")));
        assert_eq!(tree(true, &["Key path: constant row"])["Node Type"], "Result");
    }
}
