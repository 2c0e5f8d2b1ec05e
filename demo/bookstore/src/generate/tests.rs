use super::*;

const SMALL: Scale = Scale { customers: 50, items: 40, seed: 7 };

fn rows(scale: Scale, table: Table) -> String {
    let mut out = String::new();
    for number in 1..=scale.rows(table) {
        scale.push_rows(table, number, &mut out);
    }
    out
}

#[test]
fn rows_are_a_function_of_seed_table_and_number() {
    for table in Table::ALL {
        let all = rows(SMALL, table);
        assert_eq!(all, rows(SMALL, table));
        let mut alone = String::new();
        SMALL.push_rows(table, 3, &mut alone);
        assert!(all.contains(&alone), "{table:?}: a row made by itself differs");
        if table != Table::Country {
            assert_ne!(all, rows(Scale { seed: 8, ..SMALL }, table), "{table:?} ignores the seed");
        }
    }
}

#[test]
fn first_rows_are_those_of_this_format() {
    // A change here is a change of the data: FORMAT must change with it, or half-loaded shops are
    // mixed up.
    let order = SMALL.order(1);
    let lines: Vec<(u64, u64, u64)> =
        order.lines.iter().map(|line| (line.item, line.quantity, line.discount)).collect();
    assert_eq!(FORMAT, 1);
    assert_eq!((order.customer, order.days_ago, order.sub_total), FIRST_ORDER, "{lines:?}");
}

const FIRST_ORDER: (u64, u64, u64) = (39, 43, 771_493);

#[test]
fn cardinalities_are_tpcws() {
    let scale = Scale { customers: 144_000, items: 10_000, seed: 1 };
    let counts = Table::ALL.map(|table| scale.rows(table));
    assert_eq!(counts, [92, 2_500, 10_000, 288_000, 144_000, 129_600, 129_600, 129_600]);
    let lines: usize = (1..=2_000).map(|order| scale.order(order).lines.len()).sum();
    assert!((5_600..6_400).contains(&lines), "three lines an order, not {lines} for 2,000");
}

#[test]
fn every_row_has_its_tables_columns_and_references_what_is_there() {
    let columns = [4, 6, 22, 7, 17, 11, 6, 9];
    for (table, columns) in Table::ALL.into_iter().zip(columns) {
        for line in rows(SMALL, table).lines() {
            assert_eq!(line.split('\t').count(), columns, "{table:?}: {line}");
        }
    }
    let cell = |line: &str, at: usize| -> u64 {
        line.split('\t').nth(at).and_then(|cell| cell.parse().ok()).expect("a number")
    };
    let within = |value: u64, most: u64| assert!((1..=most).contains(&value), "{value} of {most}");
    for line in rows(SMALL, Table::Item).lines() {
        within(cell(line, 2), SMALL.authors());
        (7..12).for_each(|at| within(cell(line, at), SMALL.items));
        assert_eq!(i64::from(SMALL.stock(cell(line, 0))), cell(line, 17) as i64);
    }
    for line in rows(SMALL, Table::Customer).lines() {
        within(cell(line, 5), 2 * SMALL.customers);
    }
    for line in rows(SMALL, Table::Orders).lines() {
        within(cell(line, 1), SMALL.customers);
        within(cell(line, 8), 2 * SMALL.customers);
    }
}

#[test]
fn payment_is_of_the_orders_total_and_the_total_adds_up() {
    let cell = |line: &str, at: usize| line.split('\t').nth(at).unwrap_or_default().to_owned();
    let orders = rows(SMALL, Table::Orders);
    let payments = rows(SMALL, Table::Payment);
    for (number, (order, payment)) in (1..).zip(orders.lines().zip(payments.lines())) {
        assert_eq!(cell(order, 5), cell(payment, 6));
        let drawn = SMALL.order(number);
        let books = drawn.lines.iter().map(|line| line.quantity).sum();
        assert_eq!(drawn.total, drawn.sub_total + tax(drawn.sub_total) + shipping(books));
    }
}
