//! The spool by itself; cursors through sessions are in `tests/cursors.rs`.

use super::spool::{Spool, SpoolPlace};
use super::*;
use crate::types::{Datum, SqlType};

fn place(env: Env, budget: &Arc<MemoryBudget>) -> SpoolPlace {
    let scratch = Scratch::encrypted(std::env::temp_dir(), &*env.random);
    SpoolPlace { env, budget: Arc::clone(budget), scratch }
}

#[tokio::test]
async fn a_spool_beyond_its_memory_goes_to_a_file_and_reads_back_in_any_order() {
    let env = telesto_runtime::env();
    let budget = MemoryBudget::new(1 << 20);
    let types = vec![SqlType::Int4, SqlType::Text, SqlType::RegClass];
    let row = |n: i32| {
        let text = if n % 7 == 0 { Datum::Null } else { Datum::text(format!("{n:0>2000}")) };
        vec![Datum::Int4(n), text, Datum::text("shown")]
    };
    let mut spool = Spool::new(types, place(env, &budget), 256 << 10);
    for n in 0..1000 {
        spool.push(&[row(n)]).await.expect("kept");
    }
    assert_eq!(spool.len(), 1000);
    assert!(spool.in_file(), "two megabytes do not fit");
    assert!(budget.used_bytes() > 0 && budget.used_bytes() <= 256 << 10);
    for n in [999, 0, 500, 1, 998, 31, 32, 33, 999] {
        let read = spool.get(n).await.expect("read").expect("there");
        assert_eq!(read, row(i32::try_from(n).expect("small")), "row {n}");
    }
    assert!(spool.get(1000).await.expect("read").is_none());
    drop(spool);
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn a_spool_that_gets_no_memory_keeps_its_rows_in_a_file() {
    let budget = MemoryBudget::new(1);
    let mut spool =
        Spool::new(vec![SqlType::Int4], place(telesto_runtime::env(), &budget), 256 << 10);
    spool.push(&[vec![Datum::Int4(7)]]).await.expect("kept");
    assert_eq!(spool.get(0).await.expect("read"), Some(vec![Datum::Int4(7)]));
    assert!(spool.in_file());
}
