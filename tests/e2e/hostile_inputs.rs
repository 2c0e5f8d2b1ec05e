//! The statements of `tests/data/hostile.sql`, written out.

/// A statement that could stop a node.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: String,
    pub sql: String,
}

/// Every one of them.
pub fn inputs() -> Vec<Input> {
    let text = include_str!("../data/hostile.sql");
    text.split("-- name: ")
        .skip(1)
        .map(|block| {
            let (name, sql) = block.split_once('\n').expect("a text below its name");
            Input { name: name.to_owned(), sql: written_out(sql.trim()) }
        })
        .collect()
}

/// The text with its repetitions written out.
fn written_out(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (count, after) = after.split_once('|').expect("a count before |");
        let (what, after) = after.split_once("}}").expect("an end");
        match count.split_once("..") {
            Some((from, to)) => {
                let (from, to): (u64, u64) =
                    (from.parse().expect("a number"), to.parse().expect("a number"));
                for number in from..=to {
                    let text = what.replace("#-", &(number - 1).to_string());
                    out.push_str(&text.replace('#', &number.to_string()));
                }
            }
            None => out.push_str(&what.repeat(count.parse().expect("a number"))),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
